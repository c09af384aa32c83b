package election

// Resume notes in a choice that its standby was the host in the one before, or is noted there already: such a standby has
// connections that go on.
func (c Choice) Resume(before Choice) Choice {
	followed := before.Host == c.Standby && before.Host != c.Host
	noted := before.Former && before.Host == c.Host && before.Standby == c.Standby
	c.Former = c.Former || c.Standby != "" && (followed || noted)
	return c
}
