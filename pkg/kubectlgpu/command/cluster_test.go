package command_test

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/command"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	"github.com/gpu-dra/driver/test/kubeapi"
)

// live is a cluster with a machine of eight GPUs, and a claim for nine.
func live(t *testing.T, more ...runtime.Object) (*kubeapi.Server, string) {
	t.Helper()
	api, err := kubeapi.Start(kubeapi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	objects, err := state.Decode([]byte(prints(t, "slice-template --preset hgx-h100-8 --node-name node-1") + "---" + claim))
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Put(append(objects, more...)...); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := api.WriteKubeconfig(config, "admin"); err != nil {
		t.Fatal(err)
	}
	return api, config
}

// on runs a command against a cluster.
func on(t *testing.T, config string, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	cmd := command.New("v1.2.3", command.Streams{In: strings.NewReader(""), Out: &out, Err: &out})
	cmd.SetArgs(append(args, "--kubeconfig", config))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// asks checks the words of a command that succeeds.
func asks(t *testing.T, config, args string, words ...string) {
	t.Helper()
	out, err := on(t, config, strings.Fields(args)...)
	if err != nil {
		t.Errorf("%s: %v", args, err)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("%s does not print %q:\n%s", args, w, out)
		}
	}
}

// fails checks the words of the error of a command.
func fails(t *testing.T, config, args string, words ...string) {
	t.Helper()
	out, err := on(t, config, strings.Fields(args)...)
	if err == nil {
		t.Errorf("%s succeeds:\n%s", args, out)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v; want %q", args, err, w)
		}
	}
}

// Every command that looks at a cluster answers from one, and writes nothing to it.
func TestLiveCluster(t *testing.T) {
	api, config := live(t)
	nine := save(t, "nine.yaml", claim)
	asks(t, config, "get", "8 GPUs on 1 node, 8 free")
	asks(t, config, "tree", "└── gpu-0000-df-00-0  NVIDIA H100 80GB HBM3  79.65Gi  free")
	asks(t, config, "describe node-1", "Name:        gpu-0000-1b-00-0")
	asks(t, config, "explain claim nine -n team-a --search 10m", "does not fit", "ask for 8 instead of 9")
	asks(t, config, "plan --search 10m -f "+nine, "does not fit", "free GPUs")
	asks(t, config, "doctor -o wide", "selects 8 devices", "feature gates (/metrics of the API server) could not be read")
	dir := filepath.Join(t.TempDir(), "bundle")
	asks(t, config, "gather "+dir, "resourceslices.yaml")
	prints(t, "explain claim nine -n team-a --search 10m --from "+dir, "ask for 8 instead of 9")
	if writes := api.Requests(kubeapi.Match{User: "admin", Writes: true}); len(writes) > 0 {
		t.Errorf("the commands wrote: %+v", writes)
	}
	for _, resource := range []string{"secrets", "configmaps"} {
		if read := api.Requests(kubeapi.Match{User: "admin", Resource: resource}); len(read) > 0 {
			t.Errorf("the commands read %s: %+v", resource, read)
		}
	}
}

// An empty cluster is no error, but for who asks for a thing in it.
func TestEmptyCluster(t *testing.T) {
	api, err := kubeapi.Start(kubeapi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := api.WriteKubeconfig(config, "admin"); err != nil {
		t.Fatal(err)
	}
	old := save(t, "old.yaml", legacy)
	asks(t, config, "get", "No GPUs are published.", "0 GPUs on 0 nodes")
	asks(t, config, "tree", "No GPUs are published.")
	asks(t, config, "plan --search 10m -f "+save(t, "nine.yaml", claim), "does not fit", "no node publishes devices")
	asks(t, config, "plan --search 10m -f "+old, "which no DeviceClass carries as extendedResourceName")
	asks(t, config, "doctor", "no pod of the driver and no ResourceSlice", "install the chart")
	fails(t, config, "describe gpu-1", `no device, GPU or node is called "gpu-1"`)
	fails(t, config, "explain pod web", "Pod web was not found in namespace default")
	fails(t, config, "doctor --fail-on error", "there are findings")
}

// What a user may not read is named, and the rest is answered; without slices and classes there is no
// answer.
func TestNoPermission(t *testing.T) {
	api, config := live(t)
	for resource, note := range map[string]string{
		"pods": "Pods could not be read", "nodes": "Nodes could not be read", "resourceclaims": "ResourceClaims could not be read",
		"resourceclaimtemplates": "ResourceClaimTemplates could not be read", "events": "Events of pods could not be read",
	} {
		remove := api.Inject(kubeapi.Fault{Match: kubeapi.Match{Resource: resource}, Code: http.StatusForbidden})
		asks(t, config, "get", "8 GPUs on 1 node", "Note: "+note)
		asks(t, config, "doctor", note, "run as a user who may list it in all namespaces")
		remove()
	}
	for resource, kind := range map[string]string{"resourceslices": "ResourceSlices", "deviceclasses": "DeviceClasses"} {
		remove := api.Inject(kubeapi.Fault{Match: kubeapi.Match{Resource: resource}, Code: http.StatusForbidden})
		fails(t, config, "get", "list "+kind, "injected fault", "may you read them?", "--from and --preset")
		remove()
	}
}

// A cluster that does not serve the API, or not all of it.
func TestOldCluster(t *testing.T) {
	api, config := live(t)
	remove := api.Inject(kubeapi.Fault{Match: kubeapi.Match{Resource: "devicetaintrules"}, Code: http.StatusNotFound})
	out, err := on(t, config, "get")
	if err != nil || strings.Contains(out, "Note:") || !strings.Contains(out, "8 GPUs on 1 node") {
		t.Errorf("without DeviceTaintRules: %v\n%s", err, out)
	}
	remove()
	defer api.Inject(kubeapi.Fault{Match: kubeapi.Match{Resource: "resourceslices"}, Code: http.StatusNotFound})()
	fails(t, config, "get", "list ResourceSlices", "Kubernetes 1.34 or later")
	fails(t, config, "explain pod a", "Kubernetes 1.34 or later")
}

// A cluster that is not there, and contexts and files that are not.
func TestWrongCluster(t *testing.T) {
	api, config := live(t)
	fails(t, config, "get --context nope", "the cluster's configuration", "nope")
	fails(t, config, "gather /nowhere/bundle", "/nowhere/bundle")
	fails(t, filepath.Join(t.TempDir(), "none"), "get", "none", "no such file")
	if err := api.Away(); err != nil {
		t.Fatal(err)
	}
	fails(t, config, "get", "list ResourceSlices", "connection refused", "--from and --preset work without a cluster")
}

// keys gives the names of an object's fields with those of the objects in it, sorted by path.
func keys(value any, at string, into map[string]bool) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			path := at + "." + key
			into[path] = true
			// These are people's and boards' own names.
			if key != "attributes" && key != "capacity" && key != "consumesCounters" {
				keys(inner, path, into)
			}
		}
	case []any:
		for _, inner := range v {
			keys(inner, at+"[]", into)
		}
	}
}

// The fields that scripts read with -o json stay: names are only ever added.
func TestFieldsOfJSON(t *testing.T) {
	slices := save(t, "slices.yaml", prints(t, "slice-template --preset hgx-h100-8"))
	nine, old := save(t, "nine.yaml", claim), save(t, "old.yaml", legacy)
	one := save(t, "one.yaml", strings.Replace(claim, "count: 9", "count: 2", 1))
	for args, want := range map[string]struct {
		kind   string
		fields []string
	}{
		"get --preset hgx-h100-8 --mig-devices on-demand": {"GPUList", []string{
			".items[].node", ".items[].name", ".items[].pciBusID", ".items[].uuid", ".items[].product", ".items[].memory", ".items[].numaNode", ".items[].pcieRoot",
			".items[].nvlinkDomain", ".items[].nvlinkDomainSize", ".items[].device.driver", ".items[].device.pool", ".items[].device.name", ".items[].device.type",
			".items[].device.free", ".items[].partitions[].profile", ".items[].partitions[].memory", ".items[].partitions[].free",
			".totals.nodes", ".totals.gpus", ".totals.free", ".totals.tainted", ".totals.partitionsInUse", ".totals.nvlinkDomains[].size",
			".totals.nvlinkDomains[].wholeDomains", ".totals.nvlinkDomains[].claims", ".totals.largestFreePartition.profile",
		}},
		"tree --preset t4-4": {"GPUTree", []string{".items[].node", ".totals.free"}},
		"describe gpu-0000-21-00-0 --preset t4-4": {"DeviceDescription", []string{
			".items[].node", ".items[].device.name", ".items[].attributes", ".items[].capacity",
		}},
		"explain claim nine -n team-a --from " + slices + "," + nine: {"Explanation", []string{
			".subject", ".verdict", ".reason", ".change", ".nodes[].name", ".nodes[].verdict", ".nodes[].reason", ".nodes[].requests[].claim", ".nodes[].requests[].name",
			".nodes[].requests[].class", ".nodes[].requests[].want", ".nodes[].requests[].devices", ".nodes[].requests[].reason", ".nodes[].requests[].steps[].kind",
			".nodes[].requests[].steps[].detail", ".nodes[].requests[].steps[].removed", ".nodes[].requests[].steps[].left", ".nodes[].requests[].steps[].decisive",
		}},
		"plan --search 10m --preset hgx-h100-8 -f " + one: {"Plan", []string{
			".items[].subject", ".items[].verdict", ".items[].node", ".items[].choices[].claim", ".items[].choices[].request", ".items[].choices[].device",
			".items[].choices[].product", ".items[].choices[].nvlinkDomain", ".items[].linkCost", ".items[].leastLinkCost", ".before.free", ".after.free",
		}},
		"advise --weights-gb 14 --tenants 5": {"Advice", []string{
			".gpu", ".options[].mode", ".options[].profile", ".options[].tenantsPerGPU", ".options[].gpus", ".options[].spread", ".options[].decodeStepMs",
			".options[].spareGB", ".options[].isolation", ".options[].refused", ".best.mode", ".notes",
		}},
		"audit -f " + old:      {"AuditReport", []string{".findings[].subject", ".findings[].check", ".findings[].severity", ".findings[].message", ".findings[].why", ".findings[].fix"}},
		"doctor --preset t4-4": {"DoctorReport", []string{".findings[].subject", ".findings[].check", ".findings[].severity", ".findings[].message"}},
	} {
		var object map[string]any
		out := prints(t, args+" -o json")
		if err := json.Unmarshal([]byte(out), &object); err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		if object["apiVersion"] != "kubectl-gpu/v1alpha1" || object["kind"] != want.kind {
			t.Errorf("%s prints a %v of %v", args, object["kind"], object["apiVersion"])
		}
		have := map[string]bool{}
		keys(object, "", have)
		for _, field := range want.fields {
			if !have[field] {
				t.Errorf("%s: no field %s", args, field)
			}
		}
		if again := prints(t, args+" -o json"); again != out {
			t.Errorf("%s prints something else the second time:\n%s", args, cmp.Diff(out, again))
		}
		prints(t, args+" -o yaml", "kind: "+want.kind, "apiVersion: kubectl-gpu/v1alpha1")
		if text, wide := prints(t, args), prints(t, args+" -o wide"); len(wide) < len(text) || text == "" {
			t.Errorf("%s: %d bytes of text, %d of wide", args, len(text), len(wide))
		}
	}
}
