package uninstall

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// every is the time between two questions.
	every = 250 * time.Millisecond
	// refusals is how many in a row are a sign: an API server that is in trouble with its own
	// authorization refuses for a moment.
	refusals = 4
)

// Withdrawn tells whether a plugin that ends was uninstalled: then its account or its permissions
// are gone, and what it was allowed to ask before, which is for the caller to know, is refused. It
// asks for so long, since objects go one after the other. An answer, or none at all, is no sign of
// an uninstall.
func Withdrawn(ctx context.Context, ask func(context.Context) error, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	refused := 0
	for {
		if err := ask(ctx); apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
			refused++
		} else {
			refused = 0
		}
		if refused == refusals {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}
