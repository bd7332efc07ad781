//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
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

// checked are the suite's values with another mode of the check before an uninstall.
func (s *scene) checked(mode string) rig.Values {
	values := maps.Clone(s.values)
	values["uninstallCheck.mode"] = mode
	return values
}

// TestUninstall uses the driver and removes it, after its own check and while one GPU is ill and
// another one lost: no slice, no CDI file, no socket, no state and no object of it may be left.
func TestUninstall(t *testing.T) {
	s := begin(t)
	s.start("user", islands, request{count: 2})
	s.ended(islands, "user")
	t.Cleanup(s.repair)
	s.must(s.Upgrade(t.Context(), version, s.checked("refuse")))
	ill, err := s.Machine(t.Context(), bridges)
	s.must(err)
	lost, err := s.Machine(t.Context(), mixed)
	s.must(err)
	s.must(ill.InjectXID(0, gpusim.XID{Code: 79}))
	s.must(lost.LoseGPU(0))
	t.Cleanup(func() {
		if err := lost.HealGPU(0); err != nil {
			t.Error(err)
		}
	})
	for _, uuid := range []string{ill.UUIDs()[0], lost.UUIDs()[0]} {
		s.must(rig.Wait(t.Context(), podLimit, uuid+" has a taint", func(ctx context.Context) (string, error) {
			gpus, err := rig.GPUs(ctx, s.client)
			if slices.ContainsFunc(gpus, func(g rig.GPU) bool { return g.UUID == uuid && len(g.Taints) > 0 }) {
				return "", err
			}
			return "it has none", err
		}))
	}
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

// TestReinstallUnderPods removes the driver while a pod uses GPUs, which is refused at first, and
// installs it again beside DeviceClasses of another release: the pod runs on, the record of its
// claim is kept, and nobody else gets its GPUs. On another node NVIDIA's driver has served meanwhile,
// and the claim that it left is taken over.
func TestReinstallUnderPods(t *testing.T) {
	s := begin(t)
	s.repairAfterFailure()
	user, gpus := s.start("user", islands, request{count: 6})
	s.must(s.Upgrade(t.Context(), version, s.checked("refuse")))
	err := s.Uninstall(t.Context(), s.client)
	for _, want := range []string{"used by pod/" + user.Name, s.namespace + "/"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("an uninstall while GPUs are in use: %v, want an error that says %q", err, want)
		}
	}
	s.must(s.ready(t.Context()))
	s.undisturbed(user, 6)
	s.must(s.Restore(t.Context()))
	s.must(s.Upgrade(t.Context(), version, s.checked("warn")))
	s.must(s.Uninstall(t.Context(), s.client))
	if n := len(s.records(islands)); n != 1 {
		t.Errorf("there are %d records of one claim", n)
	}

	s.otherClasses()
	other := s.startRival(cube)
	theirs, claim := other.theirs()
	if err := s.Install(t.Context(), version, s.values); err == nil || !strings.Contains(err.Error(), "ownership") {
		t.Errorf("installed over the classes of another release: %v", err)
	}
	// Helm may keep a note of what it tried.
	s.must(s.Uninstall(t.Context(), s.client))
	beside := maps.Clone(s.values)
	beside["deviceClasses.leaveExisting"], beside["reconcileInterval"] = "true", "2s"
	other.stop()
	s.must(s.Install(t.Context(), version, beside))
	s.must(s.ready(t.Context()))
	s.owners(otherRelease, otherRelease, rig.Release)
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
	other.takesOver(theirs, claim)

	// The other chart goes, with its classes, and an upgrade makes ours.
	for _, name := range []string{gpuClass, partClass} {
		s.must(s.client.ResourceV1().DeviceClasses().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	s.must(s.Upgrade(t.Context(), version, beside))
	s.owners(rig.Release, rig.Release, rig.Release)
	// Or they are taken.
	s.must(s.Uninstall(t.Context(), s.client))
	s.otherClasses()
	s.must(s.InstallOver(t.Context(), version, s.values))
	s.owners(rig.Release, rig.Release, rig.Release)
}

// otherRelease is one of NVIDIA's chart, as its objects' annotations name it.
const otherRelease = "dra-driver-nvidia-gpu"

// otherClasses makes the classes of that release.
func (s *scene) otherClasses() {
	s.Helper()
	for name, kind := range map[string]string{gpuClass: "gpu", partClass: "mig"} {
		_, err := s.client.ResourceV1().DeviceClasses().Create(s.Context(), &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"},
				Annotations: map[string]string{"meta.helm.sh/release-name": otherRelease, "meta.helm.sh/release-namespace": otherRelease},
			},
			Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: fmt.Sprintf("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == %q", kind),
			}}}},
		}, metav1.CreateOptions{})
		s.must(err)
	}
}

// owners checks which release each of the classes of whole GPUs, of partitions and of shares is of.
func (s *scene) owners(want ...string) {
	s.Helper()
	var got []string
	for _, name := range []string{gpuClass, partClass, "shared.gpu.nvidia.com"} {
		class, err := s.client.ResourceV1().DeviceClasses().Get(s.Context(), name, metav1.GetOptions{})
		s.must(err)
		got = append(got, class.Annotations["meta.helm.sh/release-name"])
	}
	s.same("releases of the classes", want, got)
}
