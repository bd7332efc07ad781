package podclaims_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/podclaims"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
)

const objects = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {extendedResourceName: nvidia.com/gpu}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: newer, creationTimestamp: "2026-02-01T00:00:00Z"}
spec: {extendedResourceName: nvidia.com/gpu.shared}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: older, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {extendedResourceName: nvidia.com/gpu.shared}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one, namespace: team-a}
spec: {spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: own, namespace: team-a}
spec: {devices: {requests: [{name: o, exactly: {deviceClassName: gpu.nvidia.com}}]}}
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {nvidia.com/mig-1g.10gb: 7, nvidia.com/mig-2g.20gb: 0}}
`

// claims are the claims of the pod p: name, and each request with its class and count.
func claims(t *testing.T, spec, status string) (map[string]string, error) {
	t.Helper()
	s := &state.State{}
	Add(t, s, objects+"---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: team-a}\nspec: "+spec+"\nstatus: "+status+"\n")
	found, err := podclaims.Of(s, s.Pods[0])
	out := map[string]string{}
	for _, c := range found {
		var requests []string
		for _, r := range c.Spec.Devices.Requests {
			requests = append(requests, fmt.Sprintf("%s: %d %s", r.Name, max(1, r.Exactly.Count), r.Exactly.DeviceClassName))
		}
		out[c.Name] = strings.Join(requests, ", ")
	}
	return out, err
}

// The claims of a pod are its own, those of its templates, and the one for its extended resources, whose
// requests are those that the scheduler makes.
func TestClaims(t *testing.T) {
	const made = "p-extended-resources"
	for name, tc := range map[string]struct {
		spec, status string
		want         map[string]string
	}{
		"none":            {`{containers: [{name: c}]}`, "{}", nil},
		"its own":         {`{resourceClaims: [{name: g, resourceClaimName: own}], containers: [{name: c}]}`, "{}", map[string]string{"own": "o: 1 gpu.nvidia.com"}},
		"of a template":   {`{resourceClaims: [{name: g, resourceClaimTemplateName: one}], containers: [{name: c}]}`, "{}", map[string]string{"p-g": "g: 1 gpu.nvidia.com"}},
		"made":            {`{resourceClaims: [{name: g, resourceClaimTemplateName: one}], containers: [{name: c}]}`, "{resourceClaimStatuses: [{name: g, resourceClaimName: own}]}", map[string]string{"own": "o: 1 gpu.nvidia.com"}},
		"not needed":      {`{resourceClaims: [{name: g, resourceClaimTemplateName: one}], containers: [{name: c}]}`, "{resourceClaimStatuses: [{name: g}]}", nil},
		"extended":        {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]}`, "{}", map[string]string{made: "container-0-request-0: 2 gpu.nvidia.com"}},
		"made for it":     {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]}`, "{extendedResourceClaimStatus: {resourceClaimName: own, requestMappings: []}}", map[string]string{"own": "o: 1 gpu.nvidia.com"}},
		"the newer class": {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu.shared: 1}}}]}`, "{}", map[string]string{made: "container-0-request-0: 1 newer"}},
		"a class by name": {`{containers: [{name: c, resources: {limits: {deviceclass.resource.kubernetes.io/older: 3}}}]}`, "{}", map[string]string{made: "container-0-request-0: 3 older"}},
		"none of it":      {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 0}}}]}`, "{}", nil},
		"other resources": {
			`{containers: [{name: c, resources: {limits: {cpu: 1, memory: 1Gi, nvidia.com/gpu: 1}, requests: {a.example.com/b: 1, cpu: 1}}}]}`, "{}",
			map[string]string{made: "container-0-request-3: 1 gpu.nvidia.com"},
		},
		"two containers": {
			`{containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}, {name: b, resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpu.shared: 1}}}]}`, "{}",
			map[string]string{made: "container-0-request-0: 1 gpu.nvidia.com, container-1-request-0: 2 gpu.nvidia.com, container-1-request-1: 1 newer"},
		},
		"an init container with less": {
			`{initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: 1}}}], containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]}`, "{}",
			map[string]string{made: "container-1-request-0: 2 gpu.nvidia.com"},
		},
		"an init container with more": {
			`{initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: 3}}}], containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]}`, "{}",
			map[string]string{made: "container-0-request-0: 1 gpu.nvidia.com, container-1-request-0: 2 gpu.nvidia.com"},
		},
		"an init container alone": {
			`{initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: 1}}}], containers: [{name: c}]}`, "{}", map[string]string{made: "container-0-request-0: 1 gpu.nvidia.com"},
		},
		"a sidecar keeps its own": {
			`{initContainers: [{name: i, restartPolicy: Always, resources: {limits: {nvidia.com/gpu: 1}}}], containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]}`, "{}",
			map[string]string{made: "container-0-request-0: 1 gpu.nvidia.com, container-1-request-0: 2 gpu.nvidia.com"},
		},
		"two init containers, of which the second has more": {
			`{initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: 2}}}, {name: j, resources: {limits: {nvidia.com/gpu: 4}}}], containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`, "{}",
			map[string]string{made: "container-1-request-0: 3 gpu.nvidia.com, container-2-request-0: 1 gpu.nvidia.com"},
		},
		"two init containers with as much": {
			`{initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: 2}}}, {name: j, resources: {limits: {nvidia.com/gpu: 2}}}], containers: [{name: c}]}`, "{}",
			map[string]string{made: "container-0-request-0: 2 gpu.nvidia.com"},
		},
		"an init container beside a sidecar that runs": {
			`{initContainers: [{name: s, restartPolicy: Always, resources: {limits: {nvidia.com/gpu: 1}}}, {name: i, resources: {limits: {nvidia.com/gpu: 1}}}], containers: [{name: c}]}`, "{}",
			map[string]string{made: "container-0-request-0: 1 gpu.nvidia.com, container-1-request-0: 1 gpu.nvidia.com"},
		},
		"an init container before a sidecar": {
			`{initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: 1}}}, {name: s, restartPolicy: Always, resources: {limits: {nvidia.com/gpu: 1}}}], containers: [{name: c}]}`, "{}",
			map[string]string{made: "container-1-request-0: 1 gpu.nvidia.com"},
		},
		"nothing of nobody's resource": {`{containers: [{name: c, resources: {limits: {nvidia.com/mig-9g.90gb: 0}}}]}`, "{}", nil},
		"a device plugin's":            {`{containers: [{name: c, resources: {limits: {nvidia.com/mig-1g.10gb: 1}}}]}`, "{}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := claims(t, tc.spec, tc.status)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == nil {
				tc.want = map[string]string{}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
		})
	}
}

// What is missing is an error that says what to do.
func TestMissing(t *testing.T) {
	for name, tc := range map[string]struct{ spec, status, want string }{
		"claim":             {`{resourceClaims: [{name: g, resourceClaimName: gone}], containers: [{name: c}]}`, "{}", "claim g of the pod: ResourceClaim gone was not found in namespace team-a: create it, or use a template"},
		"template":          {`{resourceClaims: [{name: g, resourceClaimTemplateName: gone}], containers: [{name: c}]}`, "{}", "ResourceClaimTemplate gone was not found in namespace team-a: the pod waits until it is created"},
		"neither":           {`{resourceClaims: [{name: g}], containers: [{name: c}]}`, "{}", "claim g of the pod"},
		"claim made for it": {`{containers: [{name: c}]}`, "{extendedResourceClaimStatus: {resourceClaimName: gone, requestMappings: []}}", "the claim for the pod's extended resources: ResourceClaim gone"},
		"nobody's resource": {`{containers: [{name: a}, {name: b, resources: {limits: {nvidia.com/mig-9g.90gb: 1}}}]}`, "{}", "container b asks for nvidia.com/mig-9g.90gb, which no DeviceClass carries"},
		"a plugin's, none left": {
			`{containers: [{name: c, resources: {limits: {nvidia.com/mig-2g.20gb: 1}}}]}`, "{}", "container c asks for nvidia.com/mig-2g.20gb",
		},
	} {
		if _, err := claims(t, tc.spec, tc.status); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// Claims that are made up change nothing of the state.
func TestStateIsLeftAlone(t *testing.T) {
	s := &state.State{}
	Add(t, s, objects+"---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: team-a}\nspec: {resourceClaims: [{name: g, resourceClaimTemplateName: one}], containers: [{name: c}]}\n")
	found, err := podclaims.Of(s, s.Pods[0])
	if err != nil || len(found) != 1 || len(s.Claims) != 1 {
		t.Fatalf("%d claims, the state has %d, %v", len(found), len(s.Claims), err)
	}
	if found[0].UID != "" || found[0].Namespace != "team-a" {
		t.Errorf("claim %+v", found[0].ObjectMeta)
	}
	found[0].Spec.Devices.Requests = append(found[0].Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "more"})
	if len(s.Templates[0].Spec.Spec.Devices.Requests) != 1 {
		t.Error("the template was changed")
	}
}
