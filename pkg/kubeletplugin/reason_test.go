package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/prepare"
)

func TestReasonOf(t *testing.T) {
	cause := errors.New("cause")
	tests := map[metrics.Reason][]error{
		metrics.ReasonNotAllocated:  {&claims.Error{Reason: claims.ReasonNotAllocated, Err: cause}},
		metrics.ReasonUnknownDevice: {&claims.Error{Reason: claims.ReasonUnknownDevice, Err: cause}},
		metrics.ReasonConfig: {
			&claims.Error{Reason: claims.ReasonConfig, Err: cause}, &claims.Error{Reason: claims.ReasonSharing, Err: cause},
			&claims.Error{Reason: claims.ReasonWrongKind, Err: cause},
		},
		metrics.ReasonHeld:     {&prepare.HeldError{}},
		metrics.ReasonSwapped:  {&prepare.SwappedError{}},
		metrics.ReasonHardware: {&prepare.StepError{Err: cause}},
		metrics.ReasonCDI:      {&cdi.NodeError{}, &cdi.MissingLibraryError{}},
		metrics.ReasonJournal:  {&journal.WriteError{Err: cause}, &journal.CorruptError{Err: cause}, &journal.NewerFormatError{}},
		metrics.ReasonLock:     {&lock.TimeoutError{Err: context.DeadlineExceeded}},
		metrics.ReasonTimeout:  {context.DeadlineExceeded, context.Canceled},
		metrics.ReasonAPI:      {apierrors.NewServiceUnavailable("down"), apierrors.NewTimeoutError("slow", 1)},
		metrics.ReasonOther:    {cause},
	}
	if len(tests) != len(metrics.Reasons()) {
		t.Errorf("%d of %d reasons are tested", len(tests), len(metrics.Reasons()))
	}
	for want, list := range tests {
		for _, err := range list {
			if got := reasonOf(fmt.Errorf("prepare: %w", err)); got != want {
				t.Errorf("%T %v is %q, want %q", err, err, got, want)
			}
		}
	}
}
