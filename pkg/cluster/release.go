// Package cluster knows of which Kubernetes release the API server is. It is for parts whose wishes
// depend on that: the releases read some API objects differently. It must not know what is done with
// the answer.
package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// unknownRetry is the time between two questions while there is no answer.
	unknownRetry = 2 * time.Second
	// recheck is the time between two questions after that: control planes are updated under
	// running nodes.
	recheck = 10 * time.Minute
)

// Ask asks the API server for its version.
type Ask func(ctx context.Context) (*apiversion.Info, error)

// Asking is an Ask over a client, such as that of the discovery API.
func Asking(client rest.Interface) Ask {
	return func(ctx context.Context) (*apiversion.Info, error) {
		raw, err := client.Get().AbsPath("/version").Do(ctx).Raw()
		if err != nil {
			return nil, err
		}
		info := &apiversion.Info{}
		if err := json.Unmarshal(raw, info); err != nil {
			return nil, fmt.Errorf("/version: %w", err)
		}
		return info, nil
	}
}

// Watch is what is known of the API server's release. The zero Watch knows nothing.
type Watch struct {
	// Ask asks the API server.
	Ask Ask
	// Changed is called after the release became known or changed. It may be nil.
	Changed func(ctx context.Context)

	known atomic.Pointer[version.Version]
}

// Release is the API server's release, without what follows the patch number; nil while it is not
// known.
func (w *Watch) Release() *version.Version { return w.known.Load() }

// Look asks once. What was known before stays when there is no answer.
func (w *Watch) Look(ctx context.Context) error {
	info, err := w.Ask(ctx)
	if err != nil {
		return fmt.Errorf("version of the API server: %w", err)
	}
	release, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return fmt.Errorf("version of the API server: gitVersion %q: %w", info.GitVersion, err)
	}
	before := w.known.Swap(release)
	if before != nil && before.EqualTo(release) {
		return nil
	}
	klog.FromContext(ctx).Info("The API server's release", "release", release, "before", before)
	if w.Changed != nil {
		w.Changed(ctx)
	}
	return nil
}

// Run looks until the context ends: often until there is an answer, then now and then.
func (w *Watch) Run(ctx context.Context) {
	for ctx.Err() == nil {
		after := recheck
		if err := w.Look(ctx); err != nil {
			klog.FromContext(ctx).V(2).Info("The API server does not tell its version", "err", err)
			if w.Release() == nil {
				after = unknownRetry
			}
		}
		timer := time.NewTimer(after)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}
