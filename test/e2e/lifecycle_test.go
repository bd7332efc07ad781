//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// left lists what is under a directory; nothing where it does not exist.
func left(dir string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && path != dir {
			found = append(found, path)
		}
		return err
	})
	return found, err
}

// TestUninstall uses the driver and removes it: no slice, no CDI file, no socket, no state and no
// object of it may be left.
func TestUninstall(t *testing.T) {
	s := begin(t)
	s.start("user", islands, request{count: 2})
	s.ended(islands, "user")
	t.Cleanup(s.repair)
	s.must(s.Uninstall(t.Context(), s.client))
	s.must(rig.Wait(t.Context(), 45*time.Second, "the slices are gone", func(ctx context.Context) (string, error) {
		list, err := rig.Slices(ctx, s.client)
		if err != nil || len(list) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d are left", len(list)), nil
	}))
	for i := range s.Presets {
		for _, dir := range []string{s.Nodes.CDIDir(i), s.dataDir(i), filepath.Join(s.Nodes.KubeletRoot(i), "plugins_registry")} {
			found, err := left(dir)
			s.must(err)
			for _, path := range found {
				t.Errorf("%s: left behind: %s", cluster.NodeName(i), path)
			}
		}
	}
	out, err := s.kubectl(t.Context(), "get", "--all-namespaces", "--selector", "app.kubernetes.io/instance="+rig.Release, "--output", "name",
		"--ignore-not-found", "all,clusterroles,clusterrolebindings,serviceaccounts,deviceclasses,validatingadmissionpolicies,validatingadmissionpolicybindings")
	if text := strings.TrimSpace(string(out)); err != nil || text != "" {
		t.Errorf("objects are left: %v: %s", err, text)
	}
}

// TestReinstallUnderPods removes the driver while a pod uses GPUs and installs it again: the pod
// runs on, the record of its claim is kept, and nobody else gets its GPUs.
func TestReinstallUnderPods(t *testing.T) {
	s := begin(t)
	s.repairAfterFailure()
	user, gpus := s.start("user", islands, request{count: 6})
	s.must(s.Uninstall(t.Context(), s.client))
	if n := len(s.records(islands)); n != 1 {
		t.Errorf("there are %d records of one claim", n)
	}
	s.must(s.Install(t.Context(), version, s.values))
	s.must(s.ready(t.Context()))
	s.undisturbed(user, 6)
	s.create(newPod("too-many", islands, request{count: 3}))
	s.unallocatable("too-many")
	_, others := s.start("others", islands, request{count: 2})
	for _, g := range others {
		if slices.Contains(rig.UUIDs(gpus), g.UUID) {
			t.Errorf("%s was given twice", g.UUID)
		}
	}
	s.ended(islands, "user", "others", "too-many")
}

// TestDriverComesLater installs the plugin on a node whose GPU driver is absent: the plugin is
// ready, with no device and a note that says so, and the devices appear when the driver does.
func TestDriverComesLater(t *testing.T) {
	s := begin(t)
	machine, err := s.Machine(t.Context(), mixed)
	s.must(err)
	s.repairAfterFailure()
	s.must(s.Uninstall(t.Context(), s.client))
	s.must(machine.RemoveDriver())
	restore := func() {
		if err := machine.RestoreDriver(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			restore()
		}
	})
	// Installation waits until every plugin is ready.
	s.must(s.Install(t.Context(), version, s.values))
	plugin := s.plugin(mixed)
	page, err := s.page(t.Context(), plugin.Name, "readyz")
	if err != nil || !strings.Contains(string(page), "GPU driver") {
		t.Errorf("/readyz: %v: it does not say that the GPU driver is missing: %s", err, page)
	}
	s.nodeEvent("GPUDriverMissing", cluster.NodeName(mixed))
	gpus, err := rig.GPUs(t.Context(), s.client)
	s.must(err)
	for _, g := range gpus {
		if g.Node == cluster.NodeName(mixed) {
			t.Errorf("%s is published on a node without the GPU driver", g.Device)
		}
	}
	s.create(newPod("waits", mixed, request{}))
	s.unallocatable("waits")

	restore()
	s.must(s.ready(t.Context()))
	s.holds(s.running("waits")[0], 1)
	now, err := s.client.CoreV1().Pods(rig.Namespace).Get(t.Context(), plugin.Name, metav1.GetOptions{})
	s.must(err)
	if containerID(now) != containerID(plugin) {
		t.Error("the plugin was started again")
	}
}
