// Package lent lends the process's one NVML library to the container toolkit for the time of a call.
// It is for package agent. It must not know what the toolkit finds.
package lent

import (
	"context"
	"runtime/debug"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/cdi/nvidia"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
)

// Source is a nvidia.Source with a library that is lent to it.
type Source struct {
	Library *session.Library
	// Config is the source's, without the library.
	Config nvidia.Config
}

var _ cdi.CommonSource = (*Source)(nil)

// Fingerprint implements cdi.CommonSource.
func (s *Source) Fingerprint() (string, error) { return nvidia.New(s.Config).Fingerprint() }

// CommonEdits implements cdi.CommonSource.
func (s *Source) CommonEdits(ctx context.Context) (edits *specs.ContainerEdits, err error) {
	err = s.Library.Use(ctx, "common CDI edits", func(api session.API) error {
		config := s.Config
		config.Library = nvcdi.WithNvmlLib(api)
		found, err := nvidia.New(config).CommonEdits(ctx)
		edits = found
		return err
	})
	// The toolkit reads the symbols of every driver library: tens of megabytes of garbage, once
	// in the life of a driver version, that would count against the pod for minutes.
	debug.FreeOSMemory()
	return edits, err
}
