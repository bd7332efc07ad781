package agent

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/agent/apiserver"
	"github.com/gpu-dra/driver/pkg/agent/node"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/metrics"
	"github.com/gpu-dra/driver/pkg/report"
)

// ErrPluginRuns tells that a plugin runs on this node, which has to be ended first.
var ErrPluginRuns = errors.New("a plugin of this driver runs on this node: end it first, or let it do the work")

// Cleanup undoes on this node all that the driver did: every claim, by the steps of an unprepare,
// and then every file. It needs no API server, no kubelet and, as far as the claims' steps do not,
// no GPU driver. A claim whose devices are in use is left alone, and so is the rest then, unless
// it is forced.
func Cleanup(ctx context.Context, c *config.Config, version string, force bool) error {
	if err := c.Validate(); err != nil {
		return err
	}
	meter := metrics.New(version)
	presence, err := node.Join(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = presence.Leave() }()
	// From here on a plugin that starts waits until this has ended.
	if !presence.Alone() {
		return ErrPluginRuns
	}
	n, err := node.New(ctx, node.Deps{
		Config: c, Gate: &apiserver.Gate{}, Metrics: meter, Reporter: report.New(nobody{}, meter, c.NodeName, ""),
		// There is no publisher, and no process that has to go on.
		Publish: func(resourceslice.DriverResources) {}, Again: func() {}, Fatal: func(error) {},
	})
	if err != nil {
		return err
	}
	defer n.Close(ctx)
	if err := n.UndoAll(ctx, force); err != nil {
		return err
	}
	return n.Tidy(ctx, presence)
}

// nobody takes the Events of a program without an API server.
type nobody struct{}

// Eventf implements report.Recorder.
func (nobody) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}
