//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// domain is the constraint "all in one NVLink domain".
const domain = "gpu.nvidia.com/nvlinkDomain"

// oneDomain checks that GPUs share one NVLink domain, and that the container sees an NVLink
// between each two of them.
func (s *scene) oneDomain(name string, gpus []rig.GPU) string {
	s.Helper()
	domains := rig.Domains(gpus)
	if len(domains) != 1 || domains[0] == "" {
		s.Errorf("pod %s was given GPUs of the domains %q", name, domains)
	}
	links := s.links(s.getPod(name))
	if len(links) != len(gpus) {
		s.Errorf("pod %s sees a topology of %d GPUs, not %d", name, len(links), len(gpus))
	}
	if fault := links.OverNVLink(); fault != "" {
		s.Errorf("pod %s: %s", name, fault)
	}
	return domains[0]
}

// unallocatable checks the scheduler's words about a claim that cannot be met.
func (s *scene) unallocatable(name string) {
	s.Helper()
	if reason := s.pending(name); !strings.Contains(reason, "cannot allocate all claims") {
		s.Errorf("pod %s waits for another reason: %s", name, reason)
	}
}

// TestNVLinkDomain is the main job: four GPUs of one island. With GPUs of one island in use, the
// other one serves; with both in use, a pod waits and says why; with room again, it runs.
func TestNVLinkDomain(t *testing.T) {
	s := begin(t)
	example := func(name string) rig.Objects {
		objects := s.spec("four-on-one-nvlink-domain")
		pod := objects.Pods()[0]
		objects[0].SetName(name)
		pod.Name, pod.Spec.ResourceClaims[0].ResourceClaimTemplateName = name, &name
		pin(islands, pod)
		return objects
	}
	s.create(example("fits"))
	fits := s.holds(s.running("fits")[0], 4)
	s.oneDomain("fits", fits)
	s.remove("fits")

	// Two GPUs of one island are taken: four by number would cross over.
	_, taken := s.start("taken", islands, request{count: 2, match: domain})
	s.create(example("other-island"))
	four := s.holds(s.running("other-island")[0], 4)
	if got := s.oneDomain("other-island", four); got == taken[0].Domain {
		t.Errorf("four GPUs of domain %s, of which two are taken", got)
	}

	// Two are free, on one island: no four.
	s.create(example("impossible"))
	s.unallocatable("impossible")
	_, rest := s.start("rest", islands, request{count: 2, match: domain})
	if rest[0].Domain != taken[0].Domain {
		t.Errorf("the last two GPUs are of domain %s, the first two of %s", rest[0].Domain, taken[0].Domain)
	}
	s.remove("other-island")
	s.oneDomain("impossible", s.holds(s.running("impossible")[0], 4))
}

// TestBridgedPairs finds pairs, and never four, where bridges join two GPUs each.
func TestBridgedPairs(t *testing.T) {
	s := begin(t)
	s.create(newPod("four", bridges, request{count: 4, match: domain}))
	s.unallocatable("four")
	s.create(newPod("three", bridges, request{count: 3, match: domain}))
	s.unallocatable("three")
	seen := map[string]bool{}
	for _, name := range []string{"a", "b", "c", "d"} {
		_, gpus := s.start(name, bridges, request{count: 2, match: domain})
		seen[s.oneDomain(name, gpus)] = true
	}
	if len(seen) != 4 {
		t.Errorf("four pairs are in %d domains", len(seen))
	}
	s.pending("four")
}

// TestCubeMesh never gives a set that is not all-to-all where every GPU reaches some others only.
func TestCubeMesh(t *testing.T) {
	s := begin(t)
	s.create(newPod("five", cube, request{count: 5, match: domain}))
	s.unallocatable("five")
	_, first := s.start("three", cube, request{count: 3, match: domain})
	_, second := s.start("four", cube, request{count: 4, match: domain})
	if s.oneDomain("three", first) == s.oneDomain("four", second) {
		t.Error("seven GPUs are in one domain")
	}
	// One GPU is free: two of one domain there are not, whatever links it has.
	s.create(newPod("two", cube, request{count: 2, match: domain}))
	s.unallocatable("two")
	s.remove("three")
	two := s.holds(s.running("two")[0], 2)
	s.oneDomain("two", two)
}

// TestSamePCIeRoot pairs GPUs below one PCIe root: on the machine with bridged pairs each root
// has two, on the one with islands each has one.
func TestSamePCIeRoot(t *testing.T) {
	s := begin(t)
	objects := s.spec("same-pcie-root")
	pin(bridges, objects.Pods()...)
	gpus := s.holds(s.running(s.create(objects)...)[0], 2)
	if gpus[0].Root == "" || gpus[0].Root != gpus[1].Root {
		t.Errorf("the PCIe roots are %q and %q", gpus[0].Root, gpus[1].Root)
	}
	s.create(newPod("alone", islands, request{count: 2, match: "resource.kubernetes.io/pcieRoot"}))
	s.unallocatable("alone")
}

// TestSameNUMANode takes GPUs from around two others that split each NUMA node's four.
func TestSameNUMANode(t *testing.T) {
	s := begin(t)
	for _, name := range []string{"a", "b", "c"} {
		s.start(name, islands, request{})
	}
	objects := s.spec("same-numa-node")
	pin(islands, objects.Pods()...)
	gpus := s.holds(s.running(s.create(objects)...)[0], 2)
	if gpus[0].NUMA < 0 || gpus[0].NUMA != gpus[1].NUMA {
		t.Errorf("the NUMA nodes are %d and %d", gpus[0].NUMA, gpus[1].NUMA)
	}
}

// TestDomainSizeClass is an administrator's class that selects on the size of the NVLink domain:
// of all machines, those of pairs and of single boards are out.
func TestDomainSizeClass(t *testing.T) {
	s := begin(t)
	objects := s.spec("device-class-nvlink")
	pod := s.running(s.create(objects)...)[0]
	if g := s.holds(pod, 1)[0]; g.DomainSize < 4 {
		t.Errorf("%s of %s is in a domain of %d", g.Device, g.Node, g.DomainSize)
	}
	elsewhere := objects.Pods()[0].DeepCopy()
	elsewhere.Name, elsewhere.ResourceVersion = "pairs-only", ""
	pin(bridges, elsewhere)
	s.create(rig.Objects{elsewhere})
	s.unallocatable("pairs-only")
}

// TestFirstFitKeepsDomains fills one domain before it opens the next, without any constraint, so
// that room for four stays.
func TestFirstFitKeepsDomains(t *testing.T) {
	s := begin(t)
	var gpus []rig.GPU
	for _, name := range []string{"a", "b", "c", "d"} {
		_, one := s.start(name, islands, request{})
		gpus = append(gpus, one...)
	}
	if domains := rig.Domains(gpus); len(domains) != 1 || slices.Contains(domains, "") {
		t.Errorf("four single GPUs of %s are in the domains %q", cluster.NodeName(islands), domains)
	}
}
