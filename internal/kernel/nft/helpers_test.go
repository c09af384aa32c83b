package nft

import (
	"context"

	"github.com/egressway/egressway/internal/plan"
)

// keptTable is a Table with the Held that its caller keeps.
type keptTable struct {
	Table
	held    Held
	trusted bool
}

func (k *keptTable) Apply(ctx context.Context, d plan.DataPlane) (changed bool, err error) {
	r, err := k.Table.Apply(ctx, k.held, &d, k.trusted)
	k.held = r.Held
	return r.Changed, err
}

func (k *keptTable) Close() {
	k.Table.Close()
	k.trusted = false
}
