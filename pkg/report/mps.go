package report

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// MPSDown tells which MPS control daemons should serve and do not, and why. Who is not in it any
// more serves again.
func (r *Reporter) MPSDown(ctx context.Context, down map[string]string) {
	r.lasting(ctx, MPSDaemonDown, down)
}

// MPSRestarted tells that a control daemon ended and was started again.
func (r *Reporter) MPSRestarted(ctx context.Context, daemon string) {
	note := fmt.Sprintf("The MPS control daemon of device %s ended and was started again with its limits; programs that used the device through it were cut off", daemon)
	klog.FromContext(ctx).Info(note)
	r.event(r.node, corev1.EventTypeWarning, MPSDaemonRestarted, note)
}
