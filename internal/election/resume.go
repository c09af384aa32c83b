package election

// Resume marks the standby of a choice as the former host if it was the host in the choice before, or was marked there. Such
// a standby has connections that continue.
func (c Choice) Resume(before Choice) Choice {
	followed := before.Host == c.Standby && before.Host != c.Host
	noted := before.Former && before.Host == c.Host && before.Standby == c.Standby
	c.Former = c.Former || c.Standby != "" && (followed || noted)
	return c
}
