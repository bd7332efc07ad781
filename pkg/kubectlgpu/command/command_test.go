package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/command"
)

// run executes the command with arguments, without a cluster, and gives what it printed.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var out strings.Builder
	cmd := command.New("v1.2.3", command.Streams{In: strings.NewReader(""), Out: &out, Err: &out})
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// prints checks that a command succeeds and prints these words.
func prints(t *testing.T, args string, words ...string) string {
	t.Helper()
	out, err := run(t, strings.Fields(args)...)
	if err != nil {
		t.Errorf("%s: %v", args, err)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("%s does not print %q:\n%s", args, w, out)
		}
	}
	return out
}

// refuses checks that a command fails and that the message has these words.
func refuses(t *testing.T, args string, words ...string) {
	t.Helper()
	out, err := run(t, strings.Fields(args)...)
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

func save(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHelp(t *testing.T) {
	prints(t, "--version", "v1.2.3")
	help := prints(t, "--help", "get", "tree", "describe", "slice-template", "kubectl gpu [command]")
	if strings.Contains(help, "--as-group") {
		t.Error("rare flags are in the help")
	}
	prints(t, "__complete get --preset hgx-h", "hgx-h100-8", "hgx-h200-8")
	prints(t, "completion bash", "complete")
}

func TestLooking(t *testing.T) {
	prints(t, "get --preset two-islands --nodes 2", "16 GPUs on 2 nodes", "fit now: 4 (whole domains of 4 free: 4)")
	prints(t, "get --preset two-islands --nodes 2 --node node-1 -o jsonpath={.totals.gpus}", "8")
	prints(t, "tree --preset hgx-h100-8 --mig-devices on-demand", "Largest free partition: 7g.80gb")
	prints(t, "describe node-0 --preset t4-4", "Tesla T4")
	prints(t, "get --preset t4-4 --driver-name other.example.com", "4 GPUs")
}

// What slice-template prints can be read again as the state of a cluster.
func TestSliceTemplate(t *testing.T) {
	out := prints(t, "slice-template --preset hgx-h100-8 --node-name n1 --mig-devices on-demand", "sharedCounters:", "nodeName: n1")
	prints(t, "get --from "+save(t, "s.yaml", out), "8 GPUs on 1 node, 8 free", "7g.80gb")
}

func TestWrongUse(t *testing.T) {
	refuses(t, "get --server http://127.0.0.1:1", "ResourceSlices", "--from and --preset")
	refuses(t, "get --preset x", "x", "hgx-h100-8")
	refuses(t, "get --nodes 2", "--nodes belongs to --preset")
	for _, flag := range []string{"--mig-devices on-demand", "--slice-vocabulary minimal", "--list-attributes"} {
		refuses(t, "get "+flag, "add --preset")
	}
	refuses(t, "get --preset t4-4 --nodes 0", "--nodes 0")
	refuses(t, "get --preset t4-4 --from x", "two sources")
	refuses(t, "get --preset t4-4 --mig-devices all", "--mig-devices", "on-demand")
	refuses(t, "get --preset t4-4 --slice-vocabulary tiny", "--slice-vocabulary", "minimal")
	refuses(t, "get --from /nowhere", "/nowhere")
	refuses(t, "get -o xml --preset t4-4", "xml")
	refuses(t, "describe --preset t4-4", "accepts 1 arg")
	refuses(t, "describe x --preset t4-4", "x")
	refuses(t, "tree --preset x", "x")
	refuses(t, "slice-template", "preset")
	refuses(t, "slice-template --preset x", "x")
}

const claim = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: nine, namespace: team-a}
spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com, count: 9}}]}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.nvidia.com"'}}]}
`

const legacy = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 2}}}]}\n"

func TestQuestions(t *testing.T) {
	slices := save(t, "slices.yaml", prints(t, "slice-template --preset hgx-h100-8"))
	nine, old := save(t, "nine.yaml", claim), save(t, "old.yaml", legacy)
	prints(t, "explain claim nine -n team-a --from "+slices+","+nine, "claim team-a/nine: does not fit", "Change:", "ask for 8 instead of 9")
	prints(t, "explain claims nine -n team-a -o jsonpath={.verdict} --from "+slices+" --from "+nine, "does not fit")
	prints(t, "plan --preset hgx-h100-8 -f "+nine, "ResourceClaim nine: does not fit", "free GPUs")
	converted := prints(t, "convert -f "+old, "kind: ResourceClaimTemplate", "deviceClassName: gpu.nvidia.com")
	prints(t, "plan --preset hgx-h100-8 --copies 5 -f "+save(t, "new.yaml", converted), "Pod p (4 of 5): fits node node-0", "Pod p (5 of 5): does not fit", "link cost 1")
	prints(t, "advise --weights-gb 14 --tenants 5 --gpu H100-80", "2g.20gb", "3 + 2", "14.63")
	prints(t, "audit -f "+old, "2 GPUs may come from different NVLink domains")
	refuses(t, "audit --fail-on warning -f "+old, "there are findings")
	prints(t, "doctor --preset t4-4 -o wide", "selects 4 devices", "0 errors")
	refuses(t, "doctor --this-node --fail-on error --driver-root /nowhere --dev-root /nowhere", "there are findings")
}

func TestGather(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bundle")
	prints(t, "gather "+dir+" --preset t4-4", "resourceslices.yaml", "about.txt")
	prints(t, "get --from "+dir, "4 GPUs on 1 node")
	refuses(t, "gather "+dir+" --preset t4-4", "there already")
	refuses(t, "gather /nowhere/x --preset t4-4", "/nowhere/x")
}

func TestWrongQuestions(t *testing.T) {
	old := save(t, "old.yaml", legacy)
	refuses(t, "explain node x --preset t4-4", "neither pod nor claim")
	refuses(t, "explain pod x --preset t4-4", "Pod x was not found in namespace default")
	refuses(t, "explain claim x -n y --preset t4-4", "ResourceClaim x was not found in namespace y")
	refuses(t, "plan --preset t4-4", "filename")
	refuses(t, "plan --preset t4-4 -f /nowhere", "/nowhere")
	refuses(t, "plan --preset t4-4 --copies 0 -f "+old, "--copies 0")
	refuses(t, "plan --preset t4-4 -f -", "nothing to plan")
	refuses(t, "convert -f "+save(t, "bad.yaml", "a: [b"), "document")
	refuses(t, "convert -f /nowhere", "/nowhere")
	refuses(t, "advise", "weights-gb")
	refuses(t, "advise --weights-gb 1 --gpu x", "--gpu")
	refuses(t, "audit -f /nowhere", "/nowhere")
	refuses(t, "audit -f -", "no pods")
	refuses(t, "audit --fail-on x -f "+old, "--fail-on")
	refuses(t, "doctor --preset x", "x")
}
