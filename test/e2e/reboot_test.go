//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
)

// retryLimit bounds what waits for the kubelet to repeat a failed prepare, which it does after 60
// to 90 seconds.
const retryLimit = 5 * time.Minute

// reboots has pods with two whole GPUs, a time slice and two partitions run on a node that is
// rebooted: all have the same boards as before, by other device nodes, and their partitions and
// settings again. Then a board is swapped over another reboot: whoever had it is refused, with both
// UUIDs, the others run again, and once its pod is gone the new board is handed out.
func reboots(s *scene) {
	first, second := s.gpu(blackwell, 4), s.gpu(blackwell, 5)
	whole := newPod("whole", blackwell, request{count: 2, cel: is("uuid", first, second)})
	sliced := computing("sliced", blackwell, s.gpu(blackwell, 6), `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
		"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}`)
	parts := claimPod("parts", blackwell, true, ask("a", partClass, 2, is("profile", "1g.24gb"), is("parentUUID", s.gpu(blackwell, 7))))
	var names []string
	for _, objects := range []rig.Objects{whole, sliced, parts} {
		objects.Pods()[0].Spec.RestartPolicy = corev1.RestartPolicyAlways
		names = append(names, s.create(objects)...)
	}
	runs := func(pods []*corev1.Pod) {
		s.Helper()
		for _, pod := range pods {
			switch pod.Name {
			case "whole":
				s.holds(pod, 2)
			case "sliced":
				s.says("sliced", "uuid="+s.gpu(blackwell, 6))
				s.shares(blackwell, 6, gpusim.Sharing{TimeSlice: gpusim.TimeSliceLong})
			case "parts":
				s.seesParts(pod)
			}
		}
	}
	before := s.running(names...)
	runs(before)
	minors := s.minors(blackwell)
	s.reboot(blackwell, rebooted)
	if now := s.minors(blackwell); slices.Equal(minors[4:6], now[4:6]) {
		s.Fatalf("the device numbers are %v as before", now)
	}
	s.runAgain(retryLimit, before...)
	before = s.running(names...)
	runs(before)

	const swapped = "GPU-5a5a5a5a-0000-4000-8000-00000000005a"
	s.reboot(blackwell, func(*gpusim.Node) error {
		files, err := cutMachines()
		if err != nil {
			return err
		}
		files[blackwell].GPUs[4].UUID = swapped
		_, err = s.MakeMachine(s.Context(), blackwell, files[blackwell])
		return err
	})
	s.runAgain(retryLimit, before[1:]...)
	runs(s.running(names[1:]...))
	refusal := fmt.Sprintf("is GPU %s now, but the claim was prepared on GPU %s", swapped, first)
	s.must(rig.Wait(s.Context(), retryLimit, "the board that was swapped is refused", func(ctx context.Context) (string, error) {
		if err := s.nudge(ctx, "whole"); err != nil {
			return "", err
		}
		texts, err := s.events(ctx, "PrepareFailed")
		if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, refusal) }) {
			return "", nil
		}
		return strings.Join(texts, "\n"), err
	}))
	s.remove("whole")
	s.start("new", blackwell, request{cel: is("uuid", swapped)})
	s.ended(blackwell, "sliced", "parts", "new")
	s.shares(blackwell, 6, gpusim.Sharing{})
	s.leaves(blackwell, 7, false)
}

// minors are the numbers of the device nodes of a node's GPUs.
func (s *scene) minors(node int) (all []uint32) {
	s.Helper()
	machine, err := s.Machine(s.Context(), node)
	s.must(err)
	for _, g := range machine.Spec().GPUs {
		all = append(all, g.Minor)
	}
	return all
}

// runAgain waits until the containers of pods were started again, and run.
func (s *scene) runAgain(limit time.Duration, pods ...*corev1.Pod) {
	s.Helper()
	for _, before := range pods {
		s.must(rig.Wait(s.Context(), limit, "pod "+before.Name+" was started again", func(ctx context.Context) (string, error) {
			if err := s.nudge(ctx, before.Name); err != nil {
				return "", err
			}
			pod, err := s.client.CoreV1().Pods(s.namespace).Get(ctx, before.Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if status := pod.Status.ContainerStatuses; len(status) == 0 || !status[0].Ready || containerID(pod) == "" || len(before.Status.ContainerStatuses) > 0 && containerID(pod) == containerID(before) {
				return fmt.Sprintf("%s: %+v", pod.Status.Phase, status), nil
			}
			return "", nil
		}))
	}
}

// nudge has the kubelet look at a pod now and then, as it does at each change of one. By itself it
// would be a minute or more after a prepare that failed.
func (s *scene) nudge(ctx context.Context, pod string) error {
	const often = 5 * time.Second
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"e2e.example.com/nudged":%q}}}`, time.Now().Truncate(often).Format(time.TimeOnly))
	_, err := s.client.CoreV1().Pods(s.namespace).Patch(ctx, pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// rebooted is the machine after a reboot, with the device nodes in another order.
func rebooted(machine *gpusim.Node) error { return machine.Reboot(7) }

// reboot does to a node what a reboot does: all processes of pods end, what lies in memory is
// gone, and the machine is what boot makes of it. What is on disk stays.
func (s *scene) reboot(node int, boot func(*gpusim.Node) error) {
	s.Helper()
	ctx := s.Context()
	s.must(s.ClusterCommand(ctx, "stop", fmt.Sprintf("kubelet-%d", node), "KILL"))
	s.must(rig.Wait(ctx, podLimit, "no container runs", func(ctx context.Context) (string, error) {
		out, err := s.Nodes.Ctr(ctx, node, "tasks", "ls").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		running := ""
		for line := range strings.Lines(string(out)) {
			if words := strings.Fields(line); len(words) == 3 && words[2] == "RUNNING" {
				running += line
				// It may end of itself meanwhile.
				_ = s.Nodes.Ctr(ctx, node, "tasks", "kill", "--all", "--signal", "SIGKILL", words[0]).Run()
			}
		}
		return running, nil
	}))
	unmount, err := s.Nodes.NodeCommand(ctx, node, "sh", "-c", `for m in $(awk '$2 ~ "/mps/daemons/" {print $2}' /proc/self/mounts); do umount -l "$m"; done; rm -rf `+s.Nodes.CDIDir(node)+"/*")
	s.must(err)
	if out, err := unmount.CombinedOutput(); err != nil {
		s.Fatalf("what lies in memory: %v: %s", err, out)
	}
	machine, err := s.Machine(ctx, node)
	s.must(err)
	s.must(boot(machine))
	s.must(s.ClusterCommand(ctx, "up"))
}
