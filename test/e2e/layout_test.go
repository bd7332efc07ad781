//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

const (
	layoutMap   = "mig-layouts"
	layoutLabel = "nvidia.com/mig.config"
	layoutState = layoutLabel + ".state"
	// layouts is a file of mig-parted.
	layouts = `version: v1
mig-configs:
  all-1g:
  - devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb": 7}
  mixed:
  - devices: all
    mig-enabled: true
    mig-devices: {"4g.40gb": 1, "1g.10gb": 2}
`
)

// makeLayouts stores the file where the chart mounts it from.
func (s *suite) makeLayouts(ctx context.Context) error {
	maps := s.client.CoreV1().ConfigMaps(rig.Namespace)
	_ = maps.Delete(ctx, layoutMap, metav1.DeleteOptions{}) // of an earlier run
	_, err := maps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: layoutMap}, Data: map[string]string{"config.yaml": layouts},
	}, metav1.CreateOptions{})
	return err
}

// label chooses a node's layout; null takes the label away.
func (s *scene) label(ctx context.Context, node int, value string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, layoutLabel, value)
	_, err := s.client.CoreV1().Nodes().Patch(ctx, cluster.NodeName(node), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// laidOut waits until the driver says so of the node's layout, and its slices have so many
// partitions and whole GPUs.
func (s *scene) laidOut(node int, state string, parts, whole int) {
	s.Helper()
	s.must(rig.Wait(s.Context(), podLimit, "the layout is "+state, func(ctx context.Context) (string, error) {
		n, err := s.client.CoreV1().Nodes().Get(ctx, cluster.NodeName(node), metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		list, err := rig.Slices(ctx, s.client)
		if err != nil {
			return "", err
		}
		count := map[string]int{}
		for _, slice := range slicesOfNode(list, node) {
			for _, d := range slice.Spec.Devices {
				count[*d.Attributes["type"].StringValue]++
			}
		}
		if n.Labels[layoutState] != state || count["mig"] != parts || count["gpu"] != whole {
			return fmt.Sprintf("the state is %q, devices: %v", n.Labels[layoutState], count), nil
		}
		return "", nil
	}))
}

// listed are the lines of nvidia-smi -L in a pod.
func (s *scene) listed(pod string) []string {
	s.Helper()
	out, err := s.exec(pod, "main", "nvidia-smi", "-L")
	s.must(err)
	return strings.Split(strings.TrimSpace(out), "\n")
}

// comparesLayouts runs the commands of the documentation in the plugin's container of a node that is
// laid out as "mixed".
func (s *scene) comparesLayouts(node int) {
	s.Helper()
	run := func(line ...string) string {
		out, err := s.kubectl(s.Context(), append([]string{"--namespace", rig.Namespace, "exec", s.plugin(node).Name, "--", "gpu-kubelet-plugin", "mig-layout"}, line...)...)
		return fmt.Sprintf("%s%v", out, err)
	}
	if out := run("assert", "--mig-layout", "mixed"); out != "8 GPUs are as MIG layout \"mixed\" says\n<nil>" {
		s.Errorf("assert of what is there: %s", out)
	}
	if out := run("assert", "--mig-layout", "all-1g"); strings.Count(out, "want 7 x 1g.10gb, have 2 x 1g.10gb, 1 x 4g.40gb\n") != 8 || !strings.Contains(out, `8 GPUs are not as MIG layout "all-1g" says`) {
		s.Errorf("assert of another: %s", out)
	}
	const want = "mig-configs:\n  mine:\n  - devices: all\n    mig-devices:\n      1g.10gb: 2\n      4g.40gb: 1\n    mig-enabled: true\nversion: v1\n<nil>"
	if diff := cmp.Diff(want, run("export", "--name", "mine")); diff != "" {
		s.Errorf("export (-want +got):\n%s", diff)
	}
}

// declaredLayouts lays a node's GPUs out by its label: fixed partitions, another layout when the
// GPUs in use are free, and the GPUs as they were when the label goes.
func declaredLayouts(s *scene) {
	// onDemand is how many partitions a whole GPU offers.
	const each, inMixed, onDemand, gpus = 7, 3, 25, 8
	s.Cleanup(func() {
		if err := s.label(context.WithoutCancel(s.Context()), hopper, "null"); err != nil {
			s.Errorf("end of the test: %v", err)
		}
	})
	s.must(s.label(s.Context(), hopper, `"all-1g"`))
	s.laidOut(hopper, "success", gpus*each, 0)
	s.cut("pair", hopper, true, ask("a", partClass, 2, is("profile", "1g.10gb")))
	s.killPlugin(hopper)
	s.laidOut(hopper, "success", gpus*each, 0)
	s.seesParts(s.getPod("pair"))
	before := s.listed("pair")

	s.must(s.label(s.Context(), hopper, `"mixed"`))
	// The GPU of the pair waits for it and offers nothing meanwhile; the others do not wait.
	s.laidOut(hopper, "pending", (gpus-1)*inMixed, 0)
	s.same("what the pair sees", before, s.listed("pair"))
	s.remove("pair")
	s.laidOut(hopper, "success", gpus*inMixed, 0)
	s.comparesLayouts(hopper)
	given := s.cut("mixed", hopper, true, ask("large", partClass, 1, is("profile", "4g.40gb")), ask("small", partClass, 2, is("profile", "1g.10gb")))
	s.same("profiles", []string{"4g.40gb", "1g.10gb", "1g.10gb"}, profiles(given))
	s.remove("mixed")

	s.must(s.label(s.Context(), hopper, "null"))
	for n := range gpus {
		s.leaves(hopper, n, false)
	}
	s.laidOut(hopper, "", gpus*onDemand, gpus)
}
