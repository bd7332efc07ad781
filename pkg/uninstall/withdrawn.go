package uninstall

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// every is the time between two questions.
const every = 250 * time.Millisecond

// Withdrawn tells whether a plugin that ends was uninstalled: then its account or its permissions
// are gone, and what it was allowed to ask before is refused. It asks for so long, since objects go
// one after the other. An answer, or none at all, is no sign of an uninstall.
func Withdrawn(ctx context.Context, ask func(context.Context) error, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := ask(ctx); apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}
