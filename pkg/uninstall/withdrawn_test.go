package uninstall_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-dra/driver/pkg/uninstall"
)

func TestWithdrawn(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("no role"))
	for name, row := range map[string]struct {
		// answers come one after the other; the last one stays.
		answers []error
		gone    bool
		took    time.Duration
	}{
		"no permission":        {[]error{forbidden}, true, 750 * time.Millisecond},
		"no account":           {[]error{apierrors.NewUnauthorized("no account")}, true, 750 * time.Millisecond},
		"it goes a bit later":  {[]error{nil, nil, forbidden}, true, 1250 * time.Millisecond},
		"refused for a moment": {[]error{forbidden, forbidden, forbidden, nil}, false, 3 * time.Second},
		"a restart":            {[]error{nil}, false, 3 * time.Second},
		"the API is away":      {[]error{errors.New("connection refused")}, false, 3 * time.Second},
		"no such node":         {[]error{apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "n1")}, false, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				asked := 0
				gone := uninstall.Withdrawn(t.Context(), func(context.Context) error {
					err := row.answers[min(asked, len(row.answers)-1)]
					asked++
					return err
				}, 3*time.Second)
				if took := time.Since(began); gone != row.gone || took != row.took {
					t.Errorf("%t after %s, want %t after %s", gone, took, row.gone, row.took)
				}
			})
		})
	}
}

// A question that is not answered does not hold the end up.
func TestWithdrawnWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		gone := uninstall.Withdrawn(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, 3*time.Second)
		if took := time.Since(began); gone || took != 3*time.Second {
			t.Errorf("%t after %s", gone, took)
		}
	})
}
