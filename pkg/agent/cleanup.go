package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent/apiserver"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/journal"
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
	a := &Agent{config: c, version: version, gate: &apiserver.Gate{}, metrics: metrics.New(version)}
	a.reporter = report.New(nobody{}, a.metrics, c.NodeName, "")
	presence, err := a.join(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = presence.Leave() }()
	// From here on a plugin that starts waits until this has ended.
	if !presence.Alone() {
		return ErrPluginRuns
	}
	if err := a.build(ctx); err != nil {
		return err
	}
	defer a.closeLibrary(ctx)
	if err := a.recover(ctx); err != nil {
		return err
	}
	a.lookForTwin(ctx)
	a.firstScan(ctx, ctx)
	a.enterLost(ctx)
	if err := a.undoAll(ctx, force); err != nil {
		return err
	}
	a.tidy(ctx, presence)
	return nil
}

// undoAll unprepares every claim that has a record.
func (a *Agent) undoAll(ctx context.Context, force bool) error {
	records, bad, err := a.journal.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range bad {
		errs = append(errs, fmt.Errorf("record %s is left as it is: %w", b.Path, b.Err))
	}
	for _, r := range records {
		claim := claims.Ref{Namespace: r.Namespace, Name: r.Name, UID: r.UID}
		if err := a.inUse(ctx, r); err != nil && !force {
			errs = append(errs, fmt.Errorf("claim %s/%s (UID %s): end its pod, or give --force: %w", claim.Namespace, claim.Name, claim.UID, err))
			continue
		}
		if err := a.engine.Unprepare(ctx, claim); err != nil {
			errs = append(errs, fmt.Errorf("undo claim %s/%s (UID %s): %w", claim.Namespace, claim.Name, claim.UID, err))
			continue
		}
		klog.FromContext(ctx).Info("Undone", "claim", klog.KRef(claim.Namespace, claim.Name), "claimUID", claim.UID)
	}
	return errors.Join(errs...)
}

// inUse says why a claim's devices may be in use.
func (a *Agent) inUse(ctx context.Context, r *journal.Record) error {
	use := a.reconciler.Users.Use(ctx, r)
	if len(use.By) > 0 {
		return fmt.Errorf("its devices are in use by %s", strings.Join(use.By, ", "))
	}
	return use.Err
}

// nobody takes the Events of a program without an API server.
type nobody struct{}

// Eventf implements report.Recorder.
func (nobody) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}
