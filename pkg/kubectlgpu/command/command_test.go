package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	refuses(t, "describe --preset t4-4", "describe has 0 arguments; use it as: kubectl gpu describe NAME")
	refuses(t, "explain pod --preset t4-4", "explain has 1 arguments; use it as: kubectl gpu explain pod|claim NAME")
	refuses(t, "gather a b --preset t4-4", "gather has 2 arguments; use it as: kubectl gpu gather DIR")
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
	prints(t, "explain claim nine -n team-a --search 10m --from "+slices+","+nine, "claim team-a/nine: does not fit", "Change:", "ask for 8 instead of 9")
	prints(t, "explain claims nine -n team-a -o jsonpath={.verdict} --from "+slices+" --from "+nine, "does not fit")
	prints(t, "plan --search 10m --preset hgx-h100-8 -f "+nine, "ResourceClaim nine: does not fit", "free GPUs")
	converted := prints(t, "convert -f "+old, "kind: ResourceClaimTemplate", "deviceClassName: gpu.nvidia.com")
	prints(t, "plan --search 10m --preset hgx-h100-8 --copies 5 -f "+save(t, "new.yaml", converted), "Pod p (4 of 5): fits node node-0", "Pod p (5 of 5): does not fit", "link cost 1")
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
	refuses(t, "explain node x --preset t4-4", "neither pod nor claim", "explain pod|claim NAME")
	refuses(t, "explain pod x --preset t4-4", "Pod x was not found in namespace default")
	refuses(t, "explain claim x -n y --preset t4-4", "ResourceClaim x was not found in namespace y")
	for _, command := range []string{"plan --search 10m --preset t4-4", "convert", "audit"} {
		refuses(t, command, "Name a file with --filename (-f), or - for the standard input")
	}
	refuses(t, "plan --search 10m --preset t4-4 -f /nowhere", "/nowhere")
	refuses(t, "plan --search 10m --preset t4-4 --copies 0 -f "+old, "--copies 0")
	refuses(t, "plan --search 10m --preset t4-4 -f -", "nothing to plan")
	refuses(t, "convert -f "+save(t, "bad.yaml", "a: [b"), "document")
	refuses(t, "convert -f /nowhere", "/nowhere")
	refuses(t, "advise", "weights-gb")
	refuses(t, "advise --weights-gb 1 --gpu x", "--gpu")
	refuses(t, "audit -f /nowhere", "/nowhere")
	refuses(t, "audit -f -", "no pods")
	refuses(t, "audit --fail-on x -f "+old, "--fail-on")
	refuses(t, "doctor --preset x", "x")
}

// completes gives what a shell is offered after some words.
func completes(t *testing.T, words ...string) []string {
	t.Helper()
	out, err := run(t, append([]string{"__complete"}, words...)...)
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	var offered []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, ":") {
			if line != ":4" {
				t.Errorf("%q: directive %s: files are offered, too", words, line)
			}
			break
		}
		offered = append(offered, line)
	}
	return offered
}

func TestCompletion(t *testing.T) {
	pods := save(t, "pods.yaml", claim+`---
apiVersion: v1
kind: Pod
metadata: {name: train-0, namespace: team-a}
spec: {resourceClaims: [{name: g, resourceClaimName: nine}], containers: [{name: c}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: team-a}
spec: {containers: [{name: c}]}
---
apiVersion: v1
kind: Pod
metadata: {name: train-1, namespace: team-b}
spec: {resourceClaims: [{name: g, resourceClaimName: ten}], containers: [{name: c}]}
`)
	for name, tc := range map[string]struct {
		words []string
		want  []string
	}{
		"devices":                  {[]string{"describe", "--preset", "t4-4", "gpu-0000-2"}, []string{"gpu-0000-21-00-0"}},
		"nodes":                    {[]string{"describe", "--preset", "t4-4", "--nodes", "2", "node-"}, []string{"node-0", "node-1"}},
		"another driver's":         {[]string{"describe", "--preset", "t4-4", "--driver-name", "gpu.example.com", "node-"}, []string{"node-0"}},
		"no second device":         {[]string{"describe", "--preset", "t4-4", "node-0", ""}, nil},
		"node of a list":           {[]string{"get", "--preset", "t4-4", "--node", ""}, []string{"node-0"}},
		"node of a tree":           {[]string{"tree", "--preset", "t4-4", "--nodes", "2", "--node", "node-1"}, []string{"node-1"}},
		"kinds":                    {[]string{"explain", ""}, []string{"claim", "pod"}},
		"kind that has begun":      {[]string{"explain", "p"}, []string{"pod"}},
		"pods with claims":         {[]string{"explain", "--from", pods, "-n", "team-a", "pod", ""}, []string{"train-0"}},
		"pods elsewhere":           {[]string{"explain", "--from", pods, "-n", "team-b", "po", "tr"}, []string{"train-1"}},
		"claims":                   {[]string{"explain", "--from", pods, "-n", "team-a", "claims", ""}, []string{"nine"}},
		"names of no kind":         {[]string{"explain", "--from", pods, "-n", "team-a", "node", ""}, nil},
		"nothing after the name":   {[]string{"explain", "--from", pods, "pod", "train-0", ""}, nil},
		"source without an answer": {[]string{"describe", "--from", "/nowhere", ""}, nil},
		"severities":               {[]string{"audit", "--fail-on", ""}, []string{"never", "warning", "error"}},
		"vocabularies":             {[]string{"get", "--slice-vocabulary", ""}, []string{"full", "minimal"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, completes(t, tc.words...)); diff != "" {
				t.Errorf("%q (-want +got):\n%s", tc.words, diff)
			}
		})
	}
}

// Each example of the help works, with files of those names and a machine in the place of a cluster.
func TestExamples(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	cluster := prints(t, "slice-template --preset hgx-h100-8 --node-name node-1") + "---" + claim +
		"---\napiVersion: v1\nkind: Pod\nmetadata: {name: train-0, namespace: team-a}\nspec: {resourceClaims: [{name: g, resourceClaimName: nine}], containers: [{name: c, resources: {claims: [{name: g}]}}]}\n" +
		"---" + strings.ReplaceAll(claim, "nine, namespace: team-a", "big, namespace: default")
	for name, content := range map[string]string{
		"bundle/cluster.yaml": strings.ReplaceAll(cluster, "gpu-0000-1b-00-0", "gpu-0000-1a-00-0"),
		"values.yaml":         "sliceVocabulary: minimal\nmigDevices: on-demand\n",
		"claim.yaml":          claim, "pod.yaml": legacy, "deployment.yaml": legacy, "train.yaml": legacy,
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	commands := 0
	for _, cmd := range command.New("v0.0.0-test", command.Streams{}).Commands() {
		for line := range strings.Lines(cmd.Example) {
			commands++
			line, _, _ := strings.Cut(strings.TrimSpace(line), " | ")
			line, _, _ = strings.Cut(line, " > ")
			rest, ok := strings.CutPrefix(strings.Replace(line, "kubectl-gpu", "kubectl gpu", 1), "kubectl gpu ")
			if !ok {
				t.Errorf("example %q is no command of kubectl gpu", line)
				continue
			}
			args := strings.Fields(rest)
			takesSource := cmd.Flags().Lookup("from") != nil
			if takesSource && !strings.Contains(rest, "--preset") && !strings.Contains(rest, "--from") && !strings.Contains(rest, "--this-node") {
				args = append(args, "--from", "bundle/cluster.yaml")
			}
			if cmd.Name() == "gather" && strings.HasPrefix(rest, "gather bundle") {
				args[1] = filepath.Join(dir, "new")
			}
			out, err := run(t, args...)
			if strings.Contains(rest, "--fail-on") && err != nil && err.Error() == "there are findings" {
				continue
			}
			if err != nil {
				t.Errorf("example %q: %v\n%s", line, err, out)
			}
		}
	}
	if commands < 15 {
		t.Errorf("only %d examples", commands)
	}
}
