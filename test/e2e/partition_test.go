//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
)

// TestPartitions cuts GPUs on demand, on machines of four kinds. The cases run side by side: on
// the H100 each has GPUs of its own, by selector, so that none takes another's room. Then a node
// has its GPUs laid out as declared.
func TestPartitions(t *testing.T) {
	cutGPUs(t)
	t.Run("on demand", func(t *testing.T) {
		for name, test := range map[string]func(*scene){
			"seven and the eighth": sevenAndTheEighth, "one parent": oneParent, "beside a whole GPU": besideWhole,
			"containers apart": containersApart, "a whole GPU where no partition fits": partElseWhole,
			"Ampere": ampereNode, "Blackwell, a restart and reboots": blackwellNode, "A30": smallNode,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(begin(t))
			})
		}
	})
	t.Run("sick", sickPartitions)
	t.Run("another release", func(t *testing.T) { downAndUp(begin(t)) })
	t.Run("declared", func(t *testing.T) { declaredLayouts(begin(t)) })
}

// sevenAndTheEighth fills a GPU: the eighth waits if it must be on that GPU, and is on the next
// one otherwise. With room again the one that waited runs.
func sevenAndTheEighth(s *scene) {
	first, next := s.gpu(hopper, 0), s.gpu(hopper, 1)
	small := is("profile", "1g.10gb")
	seven := s.cut("seven", hopper, true, ask("a", partClass, 7, small, is("parentUUID", first)))
	s.same("parents of the seven", []string{first}, parents(seven))
	s.create(claimPod("waits", hopper, false, ask("a", partClass, 1, small, is("parentUUID", first))))
	s.unallocatable("waits")
	eighth := s.cut("eighth", hopper, false, ask("a", partClass, 1, small, is("parentUUID", first, next)))
	s.same("parent of the eighth", []string{next}, parents(eighth))
	s.remove("seven")
	s.same("parent of the one that waited", []string{first}, parents(s.seesParts(s.running("waits")[0])))
	s.remove("waits", "eighth")
	s.leaves(hopper, 0, false)
	s.leaves(hopper, 1, false)
}

// oneParent asks twice for four partitions of one GPU: there is room for the second four on the
// first GPU and the next together, but on none of them alone except the next.
func oneParent(s *scene) {
	first, next := s.gpu(hopper, 2), s.gpu(hopper, 3)
	four := ask("a", partClass, 4, is("profile", "1g.10gb"), is("parentUUID", first, next))
	s.same("parents of the first four", []string{first}, parents(s.cut("first", hopper, true, four)))
	s.same("parents of the second four", []string{next}, parents(s.cut("second", hopper, true, four)))
}

// besideWhole takes a GPU in parts and whole, in turns: each excludes the other, and what waits
// runs when the other has ended. Nobody switches a mode.
func besideWhole(s *scene) {
	uuid := s.gpu(hopper, 4)
	part := ask("a", partClass, 1, is("parentUUID", uuid), is("profile", "3g.40gb"))
	s.same("first", []string{"3g.40gb"}, profiles(s.cut("part", hopper, false, part)))
	s.create(newPod("whole", hopper, request{cel: is("uuid", uuid)}))
	s.unallocatable("whole")
	s.remove("part")
	s.holds(s.running("whole")[0], 1)
	s.leaves(hopper, 4, false)
	s.create(claimPod("again", hopper, false, part))
	s.unallocatable("again")
	s.remove("whole")
	s.seesParts(s.running("again")[0])
	s.remove("again")
	s.leaves(hopper, 4, false)
}

// containersApart is the mixed scheme, a large partition and two small ones of one GPU, in a pod
// whose containers each have one of them.
func containersApart(s *scene) {
	uuid := s.gpu(hopper, 5)
	given := s.cut("mixed", hopper, true,
		ask("large", partClass, 1, is("profile", "4g.40gb"), is("parentUUID", uuid)),
		ask("small", partClass, 1, is("profile", "1g.10gb")), ask("tiny", partClass, 1, is("profile", "1g.10gb")))
	s.same("profiles", []string{"4g.40gb", "1g.10gb", "1g.10gb"}, profiles(given))
	s.same("parents", []string{uuid}, parents(given))
}

// partElseWhole asks for a partition, or else a whole GPU: there is one partition of that size on
// a GPU, so that the second pod gets the other GPU whole.
func partElseWhole(s *scene) {
	wish := either("gpu", ask("part", partClass, 1, is("profile", "4g.40gb"), is("parentUUID", s.gpu(hopper, 6))),
		ask("whole", gpuClass, 1, is("uuid", s.gpu(hopper, 7))))
	if first := s.cut("first", hopper, false, wish); first[0].Request != "gpu/part" {
		s.Errorf("the first was given %s for %q", first[0].Device, first[0].Request)
	}
	s.create(claimPod("second", hopper, false, wish))
	if second := s.holds(s.running("second")[0], 1); second[0].Request != "gpu/whole" || second[0].UUID != s.gpu(hopper, 7) {
		s.Errorf("the second was given %s for %q", second[0].Device, second[0].Request)
	}
}

// fillAndMix does on a GPU of any board what the first cases do on an H100: the smallest partitions
// fill it, one more waits until there is room, and containers of a pod have a large one and two
// small ones of it apart.
func (s *scene) fillAndMix(node, number int, small string, most int64, large string) {
	s.Helper()
	uuid := s.gpu(node, number)
	of, smallest := is("parentUUID", uuid), is("profile", small)
	s.same("parents of those that fill a GPU", []string{uuid}, parents(s.cut("full", node, true, ask("a", partClass, most, smallest, of))))
	s.create(claimPod("one-more", node, false, ask("a", partClass, 1, smallest, of)))
	s.unallocatable("one-more")
	s.remove("full")
	s.seesParts(s.running("one-more")[0])
	s.remove("one-more")
	mixed := s.cut("mixed", node, true, ask("large", partClass, 1, is("profile", large), of), ask("small", partClass, 1, smallest), ask("tiny", partClass, 1, smallest))
	s.same("profiles of the mix", []string{large, small, small}, profiles(mixed))
	s.same("parent of the mix", []string{uuid}, parents(mixed))
	s.remove("mixed")
}

// ampereNode has GPUs in MIG mode, which are given in parts only, and others, which are given
// whole only. A partition that somebody else made is given as it is and stays.
func ampereNode(s *scene) {
	s.leaves(ampere, foreign, true, "3g.40gb:4")
	s.fillAndMix(ampere, empty, "1g.10gb", 7, "4g.40gb")
	pair := s.cut("pair", ampere, true, ask("a", partClass, 2, is("profile", "2g.20gb")))
	s.same("parent", []string{s.gpu(ampere, empty)}, parents(pair))
	static := s.cut("static", ampere, false, ask("a", partClass, 1, is("uuid", s.part(s.getPod("pair"), rig.GPU{
		Device: "the foreign partition", Parent: s.gpu(ampere, foreign), Profile: "3g.40gb", Start: 4,
	}).UUID)))
	s.same("parent of the foreign one", []string{s.gpu(ampere, foreign)}, parents(static))
	s.cut("beside", ampere, false, ask("a", partClass, 1, is("profile", "1g.10gb"), is("parentUUID", s.gpu(ampere, foreign))))
	s.create(newPod("too-many", ampere, request{count: 8 - whole + 1}))
	s.unallocatable("too-many")
	s.start("all-whole", ampere, request{count: 8 - whole})
	s.exportersSee(ampere, "pair", "static", "beside", "all-whole")
	s.remove("pair", "static", "beside", "all-whole", "too-many")
	s.leaves(ampere, empty, true)
	s.leaves(ampere, foreign, true, "3g.40gb:4")
	s.leaves(ampere, whole, false)
}

// blackwellNode has GPUs with twelve memory slices, and its plugin is killed while pods run and a
// partition is made: the pods run on, no slice is written, and the new process ends what the old one
// began. Then the node is rebooted.
func blackwellNode(s *scene) {
	s.fillAndMix(blackwell, 5, "1g.24gb", 4, "2g.48gb")
	four := s.cut("four", blackwell, true, ask("a", partClass, 4, is("profile", "1g.24gb")))
	s.same("parents", []string{s.gpu(blackwell, 0)}, parents(four))
	half := s.cut("half", blackwell, false, ask("a", partClass, 1, computeOf("60")))
	s.same("at least 60 multiprocessors", []string{"2g.48gb"}, profiles(half))
	roomy := s.cut("roomy", blackwell, false, ask("a", partClass, 1, memoryOf("40Gi")))
	if least := resource.MustParse("40Gi"); roomy[0].Memory.Cmp(least) < 0 || roomy[0].Profile == "4g.96gb" {
		s.Errorf("at least 40 GiB: %s with %s", roomy[0].Profile, roomy[0].Memory.String())
	}
	before := s.slicesOf(blackwell)
	pod := s.getPod("four")
	s.beginToCut("middle", blackwell, 6, "2g.48gb")
	s.killPlugin(blackwell)
	s.touch("middle")
	if after := s.getPod("four"); containerID(after) != containerID(pod) {
		s.Error("the pod was started again")
	}
	s.seesParts(pod)
	s.cut("later", blackwell, false, ask("a", partClass, 1, is("profile", "2g.48gb")))
	s.same("the one that was begun", []string{"2g.48gb"}, profiles(s.seesParts(s.runningWithin(retry, "middle")[0])))
	s.ended(blackwell, "four", "half", "roomy", "later", "middle")
	for _, i := range []int{0, 1, 2, 5, 6} {
		s.leaves(blackwell, i, false)
	}
	if diff := cmp.Diff(before, s.slicesOf(blackwell)); diff != "" {
		s.Errorf("the slices were written (-before +after):\n%s", diff)
	}
	reboots(s)
}

// beginToCut makes a pod for a partition of a GPU and waits until the driver is about to make it,
// which it never does. What keeps it from that ends with the plugin's process.
func (s *scene) beginToCut(name string, node, number int, profile string) {
	s.Helper()
	machine, err := s.Machine(s.Context(), node)
	s.must(err)
	s.must(machine.FailCall(gpusim.CallFault{Function: "nvmlDeviceCreateGpuInstanceWithPlacement", GPU: number, Hang: true}))
	s.create(claimPod(name, node, false, ask("a", partClass, 1, is("profile", profile), is("parentUUID", s.gpu(node, number)))))
	s.must(rig.Wait(s.Context(), podLimit, "the driver is asked for a partition", func(context.Context) (string, error) {
		state, err := machine.State()
		if err != nil {
			return "", err
		}
		for _, f := range state.Faults {
			if f.Armed != 0 && f.Remaining != 0 {
				return "nobody has asked", nil
			}
		}
		return "", nil
	}))
}

// retry is longer than a kubelet waits after a prepare that failed.
const retry = 3 * time.Minute

// touch changes a pod, which has its kubelet look at it at once, where it would wait for a minute or
// more after a prepare that failed.
func (s *scene) touch(name string) {
	s.Helper()
	patch := []byte(`{"metadata":{"annotations":{"touched":"yes"}}}`)
	_, err := s.client.CoreV1().Pods(s.namespace).Patch(s.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
}

// smallNode has boards with four memory slices whose mode is on. A claim that says nothing but
// the class gets the smallest partition.
func smallNode(s *scene) {
	s.fillAndMix(small, 3, "1g.6gb", 4, "2g.12gb")
	for i := range 2 {
		name := fmt.Sprintf("any-%d", i)
		s.same(name, []string{"1g.6gb"}, profiles(s.cut(name, small, false, ask("a", partClass, 1))))
	}
	four := s.cut("four", small, true, ask("a", partClass, 4, is("profile", "1g.6gb")))
	s.same("parents of four", []string{s.gpu(small, 1)}, parents(four))
	s.same("half a GPU", []string{"2g.12gb"}, profiles(s.cut("half", small, false, ask("a", partClass, 1, memoryOf("10Gi")))))
	s.remove("any-0", "any-1", "four", "half")
	for i := range 4 {
		s.leaves(small, i, true)
	}
}
