package speaker

import (
	"context"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// onLink lists the addresses for which this node answers on the link.
type onLink struct {
	All []plan.OnLink `json:"all,omitempty"`
}

// AnswerOnLink has the speaker announce to neighbours the addresses for which this node begins to answer. If the speaker has announced
// them already it sends no request. It does while announcements fail: the speaker tries those again. The first list of a connection is sent
// even if it is empty: the speaker may still know addresses of the agent before, and would not announce them when they come back.
func (c *Client) AnswerOnLink(ctx context.Context, all sorted.List[plan.OnLink]) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	l, err := c.current()
	switch {
	case err != nil:
		return err
	case l.onLink != nil && l.onLink.Same(all) && !l.unsent:
		return nil
	}
	a, err := l.ask(ctx, message{OnLink: &onLink{all.Slice()}})
	if err != nil {
		return err
	}
	if err = a.err(); all.Len() == 0 { // nothing is left to announce, so a speaker that does not know the request lacks nothing
		err = nil
	}
	l.onLink, l.unsent = &all, err != nil
	return err
}
