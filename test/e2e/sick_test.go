//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
)

// TestSickGPUs has GPUs fall ill and get well, on each node another way, side by side.
func TestSickGPUs(t *testing.T) {
	begin(t)
	for name, test := range map[string]func(*scene){
		"fallen off the bus": fallenOff, "noted, and refused by the API server": notedAndRefused,
		"over a restart": overARestart, "tainted by an administrator": taintedByHand,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(begin(t))
		})
	}
}

// machine is the hardware of a node, and the number of one of its GPUs.
func (s *scene) machine(node int, uuid string) (*gpusim.Node, int) {
	s.Helper()
	m, err := s.Machine(s.Context(), node)
	s.must(err)
	i := slices.Index(m.UUIDs(), uuid)
	if i < 0 {
		s.Fatalf("%s has no GPU %s", cluster.NodeName(node), uuid)
	}
	return m, i
}

// fail makes a GPU report an error that needs a reset; the returned function is the reset.
func (s *scene) fail(node int, uuid string, xid uint64) (reset func()) {
	s.Helper()
	m, i := s.machine(node, uuid)
	s.must(m.SetRecoveryAction(i, 1))
	s.Cleanup(func() {
		if err := m.SetRecoveryAction(i, 0); err != nil {
			s.Error(err)
		}
	})
	s.must(m.InjectXID(i, gpusim.XID{Code: xid}))
	return func() { s.Helper(); s.must(m.SetRecoveryAction(i, 0)) }
}

// tainted waits until a GPU and its partitions have that taint, "" for none that keeps anybody
// away, and no other device of the node has it.
func (s *scene) tainted(node int, uuid, taint string) {
	s.Helper()
	s.must(rig.Wait(s.Context(), podLimit, fmt.Sprintf("GPU %s has the taint %q", uuid, taint), func(ctx context.Context) (string, error) {
		all, err := rig.Devices(ctx, s.client)
		n := 0
		for _, d := range all {
			of := d.UUID == uuid || d.Parent == uuid
			has := slices.Contains(d.Taints, taint)
			switch {
			case d.Node != cluster.NodeName(node):
				continue
			case of && taint == "" && slices.ContainsFunc(d.Taints, func(have string) bool { return !strings.HasSuffix(have, ":None") }), of && taint != "" && !has, !of && has:
				return fmt.Sprintf("%s has %q", d.Device, d.Taints), err
			case of:
				n++
			}
		}
		if n == 0 {
			return "it is not published", err
		}
		return "", err
	}))
}

// podSays waits until a pod's status says that of its devices, with these words.
func (s *scene) podSays(name string, health corev1.ResourceHealthStatus, words ...string) {
	s.Helper()
	s.must(rig.Wait(s.Context(), podLimit, fmt.Sprintf("the status of pod %s says %s and %q", name, health, words), func(ctx context.Context) (string, error) {
		pod, err := s.client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		text := "nothing"
		for _, status := range pod.Status.ContainerStatuses[0].AllocatedResourcesStatus {
			for _, r := range status.Resources {
				text = fmt.Sprintf("%s %s: %s", status.Name, r.ResourceID, r.Health)
				if r.Message != nil {
					text += ": " + *r.Message
				}
				missing := slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
				if r.Health == health && !missing {
					return "", nil
				}
			}
		}
		return text, nil
	}))
}

// claimSays waits until the claim of a pod says that of its one device.
func (s *scene) claimSays(pod string, status metav1.ConditionStatus, reason string) {
	s.Helper()
	s.must(rig.Wait(s.Context(), podLimit, fmt.Sprintf("the claim of pod %s says Ready=%s %s", pod, status, reason), func(ctx context.Context) (string, error) {
		claim, err := s.client.ResourceV1().ResourceClaims(s.namespace).Get(ctx, rig.ClaimNames(s.getPod(pod))[0], metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, d := range claim.Status.Devices {
			for _, c := range d.Conditions {
				if c.Type == "Ready" && c.Status == status && c.Reason == reason {
					return "", nil
				}
			}
		}
		return fmt.Sprintf("%+v", claim.Status.Devices), nil
	}))
}

// gone waits until a pod was deleted by somebody else and the node has no record of any claim of
// that number of pods that are left.
func (s *scene) gone(node int, pod string, records int) {
	s.Helper()
	s.must(rig.Wait(s.Context(), podLimit, "pod "+pod+" is evicted and its claim undone", func(ctx context.Context) (string, error) {
		_, err := s.client.CoreV1().Pods(s.namespace).Get(ctx, pod, metav1.GetOptions{})
		if err == nil {
			return "the pod is there", nil
		}
		if left := s.records(node); len(left) != records {
			return fmt.Sprintf("records of claims: %q", left), nil
		}
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", err
	}))
}

// fallenOff has a GPU report XID 79 while a pod runs on it: the pod and its claim say so, the others
// run on, new pods avoid it, and after a reset it is given out again. Nobody restarts the plugin.
func fallenOff(s *scene) {
	plugin := s.plugin(islands)
	_, had := s.start("victim", islands, request{})
	user, _ := s.start("user", islands, request{count: 2})
	s.claimSays("victim", metav1.ConditionTrue, "Healthy")
	begun := time.Now()
	reset := s.fail(islands, had[0].UUID, 79)
	s.podSays("victim", corev1.ResourceHealthStatusUnhealthy, "claim:gpu", "XID 79", "fallen off the PCI bus", "Drain the node")
	s.Logf("the pod's status says so at most %s after the error", time.Since(begun).Round(time.Millisecond))
	out, err := s.kubectl(s.Context(), "get", "pod", "victim", "-n", s.namespace, "-o", "yaml")
	if text := string(out); err != nil || !strings.Contains(text, "allocatedResourcesStatus:") || !strings.Contains(text, "health: Unhealthy") {
		s.Errorf("kubectl get pod: %v\n%s", err, text)
	}
	s.claimSays("victim", metav1.ConditionFalse, "XID79")
	s.event("DeviceSick", "XID 79")
	s.event("DeviceSick", "Pod/victim: ")
	s.event("DeviceSick", "ResourceClaim/"+rig.ClaimNames(s.getPod("victim"))[0]+": ")
	s.tainted(islands, had[0].UUID, "gpu.nvidia.com/xid=79:NoSchedule")
	s.undisturbed(user, 2)
	s.remove("victim")
	s.start("meanwhile", islands, request{count: 5})
	s.create(newPod("waits", islands, request{}))
	s.unallocatable("waits")
	reset()
	back := s.holds(s.running("waits")[0], 1)
	if diff := cmp.Diff(had[0].Device, back[0].Device); diff != "" {
		s.Errorf("device that came back (-before +after):\n%s", diff)
	}
	s.podSays("waits", corev1.ResourceHealthStatusHealthy)
	s.claimSays("waits", metav1.ConditionTrue, "Healthy")
	s.tainted(islands, had[0].UUID, "")
	if now := s.plugin(islands); containerID(now) != containerID(plugin) {
		s.Error("the plugin was started again")
	}
	s.ended(islands, "user", "meanwhile", "waits")
}

// notedAndRefused has a GPU report an error that is a program's own, which keeps nobody away. Then
// the API server refuses slices for a time: the taint that it refused is there when it does not
// any more.
func notedAndRefused(s *scene) {
	noted, ill := s.gpu(bridges, 0), s.gpu(bridges, 2)
	m, i := s.machine(bridges, noted)
	s.must(m.InjectXID(i, gpusim.XID{Code: 13}))
	s.tainted(bridges, noted, "gpu.nvidia.com/xid=13:None")
	s.start("same", bridges, request{cel: is("uuid", noted)})
	s.podSays("same", corev1.ResourceHealthStatusHealthy, "XID 13")

	allow := s.refuseSlices(bridges)
	reset := s.fail(bridges, ill, 95)
	s.nodeEvent("SlicesRefused", "refused for a test")
	allow()
	s.tainted(bridges, ill, "gpu.nvidia.com/xid=95:NoSchedule")
	reset()
	s.tainted(bridges, ill, "")
	s.ended(bridges, "same")
}

// refuseSlices has the API server refuse changes of a node's slices until the returned function is
// called.
func (s *scene) refuseSlices(node int) (allow func()) {
	s.Helper()
	name := s.namespace + "-refuses-slices"
	policies := s.client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	bindings := s.client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := policies.Create(s.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"resource.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"resourceslices"}},
			}}}},
			Validations: []admissionv1.Validation{{
				Expression: fmt.Sprintf("object.spec.?nodeName.orValue('') != %q", cluster.NodeName(node)), Message: "refused for a test",
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	allow = func() {
		s.Helper()
		ctx := context.WithoutCancel(s.Context())
		for _, err := range []error{bindings.Delete(ctx, name, metav1.DeleteOptions{}), policies.Delete(ctx, name, metav1.DeleteOptions{})} {
			if err != nil && !apierrors.IsNotFound(err) {
				s.Error(err)
			}
		}
	}
	s.Cleanup(allow)
	_, err = bindings.Create(s.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.must(rig.Wait(s.Context(), podLimit, "the policy is in force", func(ctx context.Context) (string, error) {
		all, err := rig.Slices(ctx, s.client)
		if err != nil {
			return "", err
		}
		slice := slicesOfNode(all, node)[0]
		slice.Labels = map[string]string{testLabel: "refused"}
		_, err = s.client.ResourceV1().ResourceSlices().Update(ctx, &slice, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), "refused for a test") {
			return "", nil
		}
		return fmt.Sprintf("a change of a slice: %v", err), nil
	}))
	return allow
}

// overARestart kills the plugin of a node with a GPU that is ill: the taint stays, nothing is
// written, and it goes when a reset was seen: these boards cannot say that they need none.
func overARestart(s *scene) {
	uuid := s.gpu(cube, 5)
	m, i := s.machine(cube, uuid)
	s.Cleanup(func() {
		if err := m.HealGPU(i); err != nil {
			s.Error(err)
		}
	})
	s.must(m.InjectXID(i, gpusim.XID{Code: 79}))
	s.tainted(cube, uuid, "gpu.nvidia.com/xid=79:NoSchedule")
	before := s.slicesOf(cube)
	s.killPlugin(cube)
	s.create(newPod("waits", cube, request{cel: is("uuid", uuid)}))
	s.unallocatable("waits")
	if diff := cmp.Diff(before, s.slicesOf(cube)); diff != "" {
		s.Errorf("the slices were written (-before +after):\n%s", diff)
	}
	s.must(m.LoseGPU(i))
	s.tainted(cube, uuid, "gpu.nvidia.com/gpu-lost=:NoSchedule")
	s.must(m.HealGPU(i))
	s.tainted(cube, uuid, "")
	s.holds(s.running("waits")[0], 1)
	s.ended(cube, "waits")
}

// taintedByHand has an administrator taint a device by its name: the pod on it is evicted and its
// claim undone, new pods avoid it until the rule is gone, and nobody else notices.
func taintedByHand(s *scene) {
	const board = 3
	uuid := s.gpu(mixed, board)
	victim, had := s.start("victim", mixed, request{cel: is("uuid", uuid)})
	user, _ := s.start("user", mixed, request{cel: is("uuid", s.gpu(mixed, board-1))})
	rules := s.client.ResourceV1().DeviceTaintRules()
	driver, pool := rig.Driver, cluster.NodeName(mixed)
	rule, err := rules.Create(s.Context(), &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "-service"},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &driver, Pool: &pool, Device: &had[0].Device},
			Taint:          resourceapi.DeviceTaint{Key: "example.com/service", Effect: resourceapi.DeviceTaintEffectNoExecute},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	remove := func() error {
		return rules.Delete(context.WithoutCancel(s.Context()), rule.Name, metav1.DeleteOptions{})
	}
	s.Cleanup(func() {
		if err := remove(); err != nil && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
	})
	s.gone(mixed, victim.Name, 1)
	s.create(newPod("waits", mixed, request{cel: is("uuid", uuid)}))
	s.unallocatable("waits")
	s.undisturbed(user, 1)
	s.must(remove())
	s.holds(s.running("waits")[0], 1)
	s.ended(mixed, "user", "waits")
}

// lateFabric makes the GPUs of a machine register with their fabric only later, as they do at boot.
func (s *scene) lateFabric(node int) {
	s.Helper()
	m, _ := s.machine(node, s.gpu(node, 0))
	for i := range m.GPUCount() {
		s.must(m.SetFabric(i, gpusim.FabricChange{State: "inProgress"}))
	}
}

// sickPartitions is what happens to GPUs that can be cut.
func sickPartitions(t *testing.T) {
	fabricLateAndHalfBroken(begin(t))
	for name, test := range map[string]func(*scene){"one partition": onePartition, "eviction among many devices": evictedAmongMany} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(begin(t))
		})
	}
}

// fabricLateAndHalfBroken begins with a fabric that is not there yet: nobody has an NVLink domain
// until it is. Then one GPU's registration fails, which costs that GPU alone the domain.
func fabricLateAndHalfBroken(s *scene) {
	m, i := s.machine(hopper, s.gpu(hopper, 6))
	s.create(newPod("late", hopper, request{count: 4, match: domain}))
	s.unallocatable("late")
	for i := range m.GPUCount() {
		s.must(m.SetFabric(i, gpusim.FabricChange{State: "completed"}))
	}
	s.oneDomain("late", s.holds(s.running("late")[0], 4))
	s.remove("late")
	s.must(m.SetFabric(i, gpusim.FabricChange{Status: new(uint32(999))}))
	s.tainted(hopper, m.UUIDs()[i], "gpu.nvidia.com/fabric=unhealthy:None")
	s.create(newPod("eight", hopper, request{count: 8, match: domain}))
	s.unallocatable("eight")
	s.must(m.SetFabric(i, gpusim.FabricChange{Status: new(uint32(0))}))
	s.oneDomain("eight", s.holds(s.running("eight")[0], 8))
	s.ended(hopper, "eight")
}

// onePartition has one partition of a GPU report XID 94: the other on that GPU is well, and the
// error ends with the partition.
func onePartition(s *scene) {
	uuid := s.gpu(small, 2)
	part := ask("a", partClass, 1, is("profile", "1g.6gb"), is("parentUUID", uuid))
	ill, well := s.cut("ill", small, false, part), s.cut("well", small, false, part)
	m, i := s.machine(small, uuid)
	instances, err := m.MIGInstances(i)
	s.must(err)
	n := slices.IndexFunc(instances, func(g gpusim.MIGInstance) bool { return int64(g.Start) == ill[0].Start })
	s.must(m.InjectXID(i, gpusim.XID{Code: 94, GPUInstance: new(uint32(instances[n].ID))}))
	s.podSays("ill", corev1.ResourceHealthStatusUnhealthy, "XID 94", "Restart the program")
	s.podSays("well", corev1.ResourceHealthStatusHealthy)
	s.onlyTainted(small, ill[0].Device, "gpu.nvidia.com/xid=94:NoSchedule")
	s.remove("ill")
	s.tainted(small, uuid, "")
	s.seesParts(s.getPod("well"))
	s.same("parents", []string{uuid}, parents(well))
	s.remove("well")
}

// onlyTainted waits until that device alone of a node has taints, and exactly that one.
func (s *scene) onlyTainted(node int, device, taint string) {
	s.Helper()
	want := map[string][]string{device: {taint}}
	s.must(rig.Wait(s.Context(), podLimit, fmt.Sprintf("%s alone has the taint %s", device, taint), func(ctx context.Context) (string, error) {
		all, err := rig.Devices(ctx, s.client)
		got := map[string][]string{}
		for _, d := range all {
			if d.Node == cluster.NodeName(node) && len(d.Taints) > 0 {
				got[d.Device] = d.Taints
			}
		}
		return cmp.Diff(want, got), err
	}))
}

// evictedAmongMany has one GPU of a node with more than a hundred devices fail for good, where
// eviction is on: its pod is evicted and its claim undone, another pod runs on, and one slice is
// written. After a reset it is given out again.
func evictedAmongMany(s *scene) {
	uuid := s.gpu(hopper, 7)
	s.start("victim", hopper, request{cel: is("uuid", uuid)})
	user, _ := s.start("user", hopper, request{cel: is("uuid", s.gpu(hopper, 0))})
	all, err := rig.Slices(s.Context(), s.client)
	s.must(err)
	devices := 0
	for _, slice := range slicesOfNode(all, hopper) {
		devices += len(slice.Spec.Devices)
	}
	if devices < 112 {
		s.Errorf("%d devices are published", devices)
	}
	before := s.slicesOf(hopper)
	reset := s.fail(hopper, uuid, 119)
	s.gone(hopper, "victim", 1)
	s.tainted(hopper, uuid, "gpu.nvidia.com/xid=119:NoExecute")
	var written []string
	for name, version := range s.slicesOf(hopper) {
		if before[name] != version {
			written = append(written, name)
		}
	}
	if len(written) != 1 {
		s.Errorf("one fault changed the slices %q", written)
	}
	s.undisturbed(user, 1)
	reset()
	s.tainted(hopper, uuid, "")
	s.start("next", hopper, request{cel: is("uuid", uuid)})
	s.ended(hopper, "user", "next")
}
