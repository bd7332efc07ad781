package claimstatus

import (
	"context"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/prepare"
)

// Preparer carries out plans; prepare.Engine does.
type Preparer interface {
	Prepare(ctx context.Context, plan claims.Plan) ([]prepare.Prepared, error)
	Unprepare(ctx context.Context, claim claims.Ref) error
}

// Hints hands calls on and hints at each that may have changed a record.
type Hints struct {
	Preparer
	Hint func()
}

// Prepare implements Preparer.
func (h Hints) Prepare(ctx context.Context, plan claims.Plan) ([]prepare.Prepared, error) {
	defer h.Hint()
	return h.Preparer.Prepare(ctx, plan)
}

// Unprepare implements Preparer.
func (h Hints) Unprepare(ctx context.Context, claim claims.Ref) error {
	defer h.Hint()
	return h.Preparer.Unprepare(ctx, claim)
}
