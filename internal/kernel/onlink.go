package kernel

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// leaveOnLink removes the addresses for which this node is no longer to answer, before anything else changes.
func (a *application) leaveOnLink(ctx context.Context) error {
	want := a.want.DataPlane.OnLink
	if a.before != nil && a.before.DataPlane.OnLink.Same(want) {
		return nil
	}
	return link.RemoveOnLink(ctx, a.links, want)
}

// answerOnLink adds the missing addresses for which this node is to answer, once the packet filter keeps their packets from the
// node's own sockets.
func (a *application) answerOnLink(ctx context.Context) error {
	want := a.want.DataPlane.OnLink
	switch {
	case a.before != nil && a.before.DataPlane.OnLink.Same(want):
		a.result.OnLink = want
		return nil
	case !a.result.InForce:
		a.result.OnLink = a.stillOnLink()
		return nil
	}
	made, failed := link.AddOnLink(ctx, a.links, want)
	for _, one := range made {
		a.rec.madeAddress(one)
	}
	a.result.OnLink = want
	if len(failed) == 0 {
		return nil
	}
	errs := make([]error, 0, len(failed))
	for one, err := range failed {
		a.result.OnLink = a.result.OnLink.With(nil, []plan.OnLink{one})
		errs = append(errs, err)
	}
	slices.SortFunc(errs, func(x, y error) int { return strings.Compare(x.Error(), y.Error()) })
	return errors.Join(errs...)
}

// stillOnLink returns those of the former plan's addresses that stay.
func (a *application) stillOnLink() (stay sorted.List[plan.OnLink]) {
	if a.former == nil {
		return stay
	}
	var all []plan.OnLink
	for one := range a.former.DataPlane.OnLink.All() {
		if w, ok := a.want.DataPlane.OnLink.Get(one); ok && w == one {
			all = append(all, one)
		}
	}
	return sorted.Of(all...)
}
