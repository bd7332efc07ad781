package runc

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Spec returns the OCI spec of c with the edits of its CDI devices, as runc will get it. A device that
// no spec in the directories defines is an error.
func Spec(c Container) (*specs.Spec, error) {
	spec := plain(c)
	if len(c.Devices) == 0 {
		return spec, nil
	}
	if len(c.SpecDirs) == 0 {
		return nil, fmt.Errorf("devices %q need directories with CDI specs", c.Devices)
	}
	// Without auto-refresh: nothing watches the directories, the scan of this moment counts.
	cache, err := cdi.NewCache(cdi.WithSpecDirs(c.SpecDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("read CDI specs of %q: %w", c.SpecDirs, err)
	}
	if unresolved, err := cache.InjectDevices(spec, c.Devices...); err != nil {
		return nil, fmt.Errorf("inject CDI devices %q (unresolved: %q; broken specs: %v): %w", c.Devices, unresolved, cache.GetErrors(), err)
	}
	return spec, nil
}

// plain is the spec of a container without devices: own namespaces, no network, what a default
// container may do, and every device denied.
func plain(c Container) *specs.Spec {
	capabilities := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
	var namespaces []specs.LinuxNamespace
	for _, t := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace} {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: t})
	}
	return &specs.Spec{
		Version: "1.0.2", // what every runc in use knows; CDI's edits do not need more
		Root:    &specs.Root{Path: c.Rootfs},
		Process: &specs.Process{
			Args: c.Args, Cwd: "/", NoNewPrivileges: true,
			Env: append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}, c.Env...),
			// No OOMScoreAdj: lowering the parent's needs CAP_SYS_RESOURCE.
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Hostname: "container",
		Mounts: append([]specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		}, c.Mounts...),
		Linux: &specs.Linux{
			Namespaces: namespaces,
			Resources:  &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
}
