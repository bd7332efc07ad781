package kubeletplugin

import (
	"context"
	"errors"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/prepare"
)

// reasonOf sorts an error into the closed set of reasons that metrics are labelled with.
func reasonOf(err error) metrics.Reason {
	var planning *claims.Error
	if errors.As(err, &planning) {
		switch planning.Reason {
		case claims.ReasonNotAllocated:
			return metrics.ReasonNotAllocated
		case claims.ReasonUnknownDevice:
			return metrics.ReasonUnknownDevice
		default:
			return metrics.ReasonConfig
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return metrics.ReasonTimeout
	}
	_ = prepare.Prepared{}
	return metrics.ReasonOther
}

func isUnknownDevice(err error) bool {
	var planning *claims.Error
	return errors.As(err, &planning) && planning.Reason == claims.ReasonUnknownDevice
}
