// Package nvidia finds, with NVIDIA's container toolkit library, the driver files that
// containers need: the edge behind cdi.CommonSource. It must not know claims, device nodes or
// where specs are written.
package nvidia

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"github.com/go-logr/logr"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpu-dra/driver/pkg/cdi"
)

// Config of a Source.
type Config struct {
	// DriverRoot is the tree that the GPU driver is installed in.
	DriverRoot cdi.Root
	// HookPath is the nvidia-cdi-hook binary on the host: the container runtime runs it.
	HookPath string
	// Library hands the process's one NVML library to the toolkit: nvcdi.WithNvmlLib. It is an
	// option so that this package need not know NVML.
	Library nvcdi.Option
	// DriverVersion is the version of the driver that answers now; it may be empty.
	DriverVersion func() string
	Logger        logr.Logger
}

// Source is the product's cdi.CommonSource.
type Source struct{ config Config }

var _ cdi.CommonSource = (*Source)(nil)

// New returns a Source. Nothing is read before the first call.
func New(config Config) *Source { return &Source{config: config} }

// hooksLeftOut are run by nobody: memory limits are set by this driver where a claim asks for
// them, and the hook would be started for every container.
const hooksLeftOut = "apply-cuda-memory-limits"

// CommonEdits implements cdi.CommonSource.
func (s *Source) CommonEdits(context.Context) (*specs.ContainerEdits, error) {
	lib, err := nvcdi.New(
		s.config.Library,
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(s.config.DriverRoot.Container),
		nvcdi.WithDevRoot(s.config.DriverRoot.Container),
		nvcdi.WithNVIDIACDIHookPath(s.config.HookPath),
		nvcdi.WithDisabledHooks(hooksLeftOut),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils, nvcdi.FeatureNoAdditionalGIDsForDeviceNodes),
		nvcdi.WithLogger(logger{s.config.Logger}),
	)
	if err != nil {
		return nil, fmt.Errorf("set up the container toolkit library: %w", err)
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("container toolkit library: %w", err)
	}
	edits := *common.ContainerEdits
	// The control nodes are the caller's.
	edits.DeviceNodes = nil
	edits.Mounts = withoutMPS(edits.Mounts)
	return s.toHostView(&edits)
}

// toHostView rewrites paths under our view of the driver root to the host's.
func (s *Source) toHostView(edits *specs.ContainerEdits) (*specs.ContainerEdits, error) {
	transform := root.New(
		root.WithRoot(filepath.Clean(s.config.DriverRoot.Container)),
		root.WithTargetRoot(filepath.Clean(s.config.DriverRoot.Host)),
		root.WithRelativeTo("host"),
	)
	spec := &specs.Spec{ContainerEdits: *edits}
	if err := transform.Transform(spec); err != nil {
		return nil, fmt.Errorf("rewrite driver paths to the host's view: %w", err)
	}
	for _, h := range spec.ContainerEdits.Hooks {
		// The hook binary is named as the host sees it from the start.
		h.Path = s.config.HookPath
	}
	return &spec.ContainerEdits, nil
}

// watched are the directories whose entries decide what the edits hold. Installing, replacing
// or removing a library changes the time of its directory.
func watched() []string {
	dirs := []string{
		"usr/bin", "lib/firmware/nvidia", "usr/share/nvidia", "usr/share/vulkan/icd.d", "usr/share/egl/egl_external_platform.d",
		"usr/share/glvnd/egl_vendor.d", "etc/vulkan/icd.d",
	}
	for _, lib := range []string{"lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"} {
		for _, dir := range []string{lib, "usr/" + lib} {
			dirs = append(dirs, dir, dir+"/nvidia/current", dir+"/vdpau", dir+"/gbm")
		}
	}
	return append(dirs, "etc/ld.so.cache")
}

// presence are sockets that are mounted where they are; what happens in them does not matter.
func presence() []string {
	return []string{"run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket"}
}

// mpsDir is CUDA's default place for the pipes of an MPS daemon. Anybody on the host can make it,
// so it does not go into everybody's containers.
const mpsDir = "tmp/nvidia-mps"

// withoutMPS drops the mount of mpsDir.
func withoutMPS(mounts []*specs.Mount) []*specs.Mount {
	return slices.DeleteFunc(mounts, func(m *specs.Mount) bool { return strings.HasSuffix(m.HostPath, "/"+mpsDir) })
}

// Fingerprint implements cdi.CommonSource from the times of directories: about thirty looks at
// the file system, no file is read. What cannot be looked at is part of it, not an error: one
// odd link in the driver's tree must not end all prepares.
func (s *Source) Fingerprint() (string, error) {
	seen := fmt.Appendln(nil, s.config.DriverVersion(), s.config.DriverRoot, s.config.HookPath)
	for _, path := range append(watched(), presence()...) {
		info, err := os.Stat(filepath.Join(s.config.DriverRoot.Container, path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			seen = fmt.Appendln(seen, path, err)
			continue
		}
		seen = fmt.Appendln(seen, path)
		if !slices.Contains(presence(), path) {
			seen = fmt.Appendln(seen, info.ModTime().UnixNano(), info.Size())
		}
	}
	sum := sha256.Sum256(seen)
	return hex.EncodeToString(sum[:]), nil
}

// logger hands the toolkit's messages on. It warns of every optional file that a driver lacks,
// so that nothing of it is worth more than a debug line; what is required is checked elsewhere.
type logger struct{ to logr.Logger }

func (l logger) log(format string, args ...any) {
	l.to.V(4).Info("container toolkit", "message", strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l logger) Debugf(format string, args ...any)   { l.log(format, args...) }
func (l logger) Errorf(format string, args ...any)   { l.log(format, args...) }
func (l logger) Infof(format string, args ...any)    { l.log(format, args...) }
func (l logger) Tracef(format string, args ...any)   { l.log(format, args...) }
func (l logger) Warningf(format string, args ...any) { l.log(format, args...) }
