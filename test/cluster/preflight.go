package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-dra/driver/test/cluster/internal/host"
)

// ErrRoot is returned where only root can do what was asked.
var ErrRoot = errors.New("a cluster needs root: network namespaces, mounts and control groups")

// ErrMissing is wrapped when the machine or the folder of programs lacks something.
var ErrMissing = errors.New("missing")

func requireRoot() error {
	if os.Geteuid() != 0 {
		return ErrRoot
	}
	return nil
}

// checkPrograms looks for what `build` makes.
func (c *Cluster) checkPrograms() error {
	for _, name := range []string{
		etcd, kubeAPIServer, kubeControllerManager, kubeScheduler, "kubelet", "kubectl", "containerd",
		"containerd-shim-runc-v2", "ctr", "runc", "cni/bridge", "cni/host-local", "cni/loopback", "images/pause.tar",
	} {
		if _, err := os.Stat(filepath.Join(c.config.Bin, name)); err != nil {
			return fmt.Errorf("%w: %s: run `build` (about 13 minutes on two free cores the first time)", ErrMissing, filepath.Join(c.config.Bin, name))
		}
	}
	return nil
}

// tools are the programs needed to build and to run, with the Debian package of each.
func tools() [][2]string {
	return [][2]string{
		{"gcc", "gcc"},
		{"pkg-config", "pkg-config"},
		{"ip", "iproute2"},
		{"nsenter", "util-linux"},
		{"unshare", "util-linux"},
		{"mount", "mount"},
		{"dpkg-deb", "dpkg"},
		{"nice", "coreutils"},
	}
}

// MissingPackages returns the Debian packages that this machine lacks, sorted.
func MissingPackages(ctx context.Context) []string {
	var missing []string
	for _, t := range tools() {
		if _, err := exec.LookPath(t[0]); err != nil {
			missing = append(missing, t[1])
		}
	}
	// Headers: runc is linked with libseccomp, the pause program with a static libc.
	if _, err := host.Exec(ctx, "pkg-config", "--exists", "libseccomp"); err != nil {
		missing = append(missing, "libseccomp-dev")
	}
	if _, err := os.Stat("/usr/include/stdio.h"); err != nil {
		missing = append(missing, "libc6-dev")
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// Preflight installs what the machine lacks, as root on Debian; elsewhere it says what to
// install.
func (c *Cluster) Preflight(ctx context.Context) error {
	missing := MissingPackages(ctx)
	if len(missing) == 0 {
		return nil
	}
	_, err := exec.LookPath("apt-get")
	if err != nil || requireRoot() != nil {
		return fmt.Errorf("%w: as root: apt-get install -y --no-install-recommends %s", ErrMissing, strings.Join(missing, " "))
	}
	return c.say.Step("install "+strings.Join(missing, " "), func(func(string)) error {
		if _, err := host.Exec(ctx, "apt-get", "-q", "update"); err != nil {
			return err
		}
		install := append([]string{"DEBIAN_FRONTEND=noninteractive", "apt-get", "-qy", "install", "--no-install-recommends"}, missing...)
		_, err := host.Exec(ctx, "env", install...)
		return err
	})
}
