package kubeletplugin

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/prepare"
)

// reasonOf sorts an error into the closed set of reasons that metrics are labelled with.
func reasonOf(err error) metrics.Reason {
	if planning := new(claims.Error); errors.As(err, &planning) {
		switch planning.Reason {
		case claims.ReasonNotAllocated:
			return metrics.ReasonNotAllocated
		case claims.ReasonUnknownDevice:
			return metrics.ReasonUnknownDevice
		default:
			return metrics.ReasonConfig
		}
	}
	switch {
	case is[*prepare.HeldError](err):
		return metrics.ReasonHeld
	case is[*prepare.SwappedError](err):
		return metrics.ReasonSwapped
	case is[*prepare.StepError](err):
		return metrics.ReasonHardware
	case is[*cdi.NodeError](err), is[*cdi.MissingLibraryError](err):
		return metrics.ReasonCDI
	case is[*journal.WriteError](err), is[*journal.CorruptError](err), is[*journal.NewerFormatError](err):
		return metrics.ReasonJournal
	case is[*lock.TimeoutError](err):
		return metrics.ReasonLock
	case is[apierrors.APIStatus](err):
		return metrics.ReasonAPI
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return metrics.ReasonTimeout
	}
	return metrics.ReasonOther
}

func is[E any](err error) bool {
	var target E
	return errors.As(err, &target)
}

func isUnknownDevice(err error) bool {
	var planning *claims.Error
	return errors.As(err, &planning) && planning.Reason == claims.ReasonUnknownDevice
}
