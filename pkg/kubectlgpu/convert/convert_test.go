package convert_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/convert"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

func options() convert.Options { return convert.Options{Driver: "gpu.nvidia.com"} }

func converted(t *testing.T, text string, o convert.Options) string {
	t.Helper()
	documents, err := convert.Convert([]byte(text), o)
	if err != nil {
		t.Fatal(err)
	}
	out, err := convert.Render(documents)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// The files of testdata and what becomes of them: *.in.yaml to *.out.yaml. To write the results
// anew after a change: UPDATE=1 go test ./pkg/kubectlgpu/convert, and read the difference.
func TestFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := converted(t, string(in), options())
			result := strings.Replace(file, ".in.", ".out.", 1)
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(result, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(result)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", result, diff)
			}
			if strings.Contains(got, "kind: ConfigMap") || strings.Contains(file, "mps") {
				return // Kept for other nodes, and so converted each time.
			}
			// What came out has nothing left to convert, but for comments.
			if again := objects(converted(t, got, options())); again != objects(got) {
				t.Errorf("a second conversion changes it:\n%s", cmp.Diff(objects(got), again))
			}
		})
	}
}

// objects is a stream without its comments.
func objects(text string) string {
	var out []string
	for _, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func pod(spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: " + spec + "\n"
}

// Single things that a pod may have, and words of what comes out, or that must not.
func TestPods(t *testing.T) {
	for name, tc := range map[string]struct{ spec, want, not string }{
		"one GPU":              {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`, "deviceClassName: gpu.nvidia.com", "nvidia.com/gpu:"},
		"request and limit":    {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}}}]}`, "count: 1", "nvidia.com/gpu:"},
		"none":                 {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 0}}}]}`, "kind: Pod", "resourceClaims"},
		"too many":             {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 33}}}]}`, "No equal: a claim has at most 32 devices, this pod asks for 33", "kind: ResourceClaimTemplate"},
		"shared":               {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu.shared: 1}}}]}`, "deviceClassName: shared.gpu.nvidia.com", ""},
		"media extension":      {`{containers: [{name: c, resources: {limits: {nvidia.com/mig-1g.10gb.me: 1}}}]}`, `== "1g.10gb+me"`, ""},
		"unknown resource":     {`{containers: [{name: c, resources: {limits: {nvidia.com/pgpu: 1}}}]}`, "No equal: container c asks for nvidia.com/pgpu", "kind: ResourceClaimTemplate"},
		"init container":       {`{initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: 1}}}], containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]}`, "request: c ", "name: i\n      - exactly"},
		"only init container":  {`{initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: 1}}}], containers: [{name: c}]}`, "request: i", ""},
		"claim of its own":     {`{resourceClaims: [{name: gpu, resourceClaimName: x}], containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`, "name: gpu-2", ""},
		"product not in":       {affinity(`{key: nvidia.com/gpu.product, operator: NotIn, values: [Tesla-T4]}`), `!(has(`, "affinity:"},
		"memory below":         {affinity(`{key: nvidia.com/gpu.memory, operator: Lt, values: ["40000"]}`), `quantity("40000Mi")) < 0`, "affinity:"},
		"memory of a number":   {affinity(`{key: nvidia.com/gpu.memory, operator: In, values: ["40000"]}`), `at least as much`, "affinity:"},
		"memory of a word":     {affinity(`{key: nvidia.com/gpu.memory, operator: In, values: [many]}`), `No equal: node label nvidia.com/gpu.memory In many`, ""},
		"any GPU node":         {affinity(`{key: nvidia.com/gpu.present, operator: Exists}`), "was taken out: a claim finds a node", "affinity:"},
		"unknown label":        {affinity(`{key: nvidia.com/gpu.family, operator: In, values: [hopper]}`), "No equal: node label nvidia.com/gpu.family", ""},
		"other label":          {affinity(`{key: disk, operator: In, values: [ssd]}`), "key: disk", "No equal"},
		"MIG config label":     {`{nodeSelector: {nvidia.com/mig.config: all-1g.10gb}, containers: [{name: c, resources: {limits: {nvidia.com/mig-1g.10gb: 1}}}]}`, "the class of the MIG profile selects", "nodeSelector:\n"},
		"shared product label": {`{nodeSelector: {nvidia.com/gpu.product: Tesla-T4-SHARED}, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`, `in ["Tesla-T4"]`, "nodeSelector:\n"},
		"alternatives":         {`{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [a]}]}, {matchExpressions: [{key: x, operator: Exists}]}]}}}, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`, "No equal: alternatives", ""},
		"preference":           {`{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [a]}]}}]}}, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`, "No equal: a preferred affinity", ""},
		"runtime class":        {`{runtimeClassName: nvidia, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`, "runtimeClassName nvidia was taken out", "runtimeClassName: nvidia"},
		"visible devices":      {`{containers: [{name: c, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}], resources: {limits: {nvidia.com/gpu: 1}}}]}`, "sets NVIDIA_VISIBLE_DEVICES", ""},
		"several GPUs":         {`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 4}}}]}`, "# 4 GPUs: with constraints", "\n      constraints"},
	} {
		t.Run(name, func(t *testing.T) {
			got := converted(t, pod(tc.spec), options())
			// Long lines are folded.
			if !strings.Contains(strings.Join(strings.Fields(got), " "), tc.want) || tc.not != "" && strings.Contains(got, tc.not) {
				t.Errorf("want %q, not %q:\n%s", tc.want, tc.not, got)
			}
		})
	}
	tied := converted(t, pod(`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 4}}}]}`), convert.Options{Driver: "gpu.example.com", NVLink: true})
	if !strings.Contains(tied, "matchAttribute: gpu.example.com/nvlinkDomain") {
		t.Error(tied)
	}
}

func affinity(requirement string) string {
	return `{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [` + requirement + `]}]}}}, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}`
}

// Objects of one name, of other kinds or other namespaces, have claim templates of their own.
func TestTemplatesOfOneName(t *testing.T) {
	text := pod(`{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]}`)
	other := strings.Replace(text, "{name: p}", "{name: p, namespace: other}", 1)
	job := "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: p}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}}\n"
	got := converted(t, text+job+"---\n"+other, options())
	for part, n := range map[string]int{"name: p-gpu\n": 2, "name: p-gpu-2\n": 1, "resourceClaimTemplateName: p-gpu\n": 2, "resourceClaimTemplateName: p-gpu-2\n": 1} {
		// Its own line, not the end of another name's.
		if found := strings.Count(got, " "+part); found != n {
			t.Errorf("%q is there %d times, want %d:\n%s", part, found, n, got)
		}
	}
}

// What Kubernetes would not take is an error that names the document; nothing is guessed.
func TestErrors(t *testing.T) {
	for name, text := range map[string]string{
		"no YAML":       "a: [b",
		"unknown field": "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {container: []}\n",
	} {
		if _, err := convert.Convert([]byte(text), options()); err == nil || !strings.Contains(err.Error(), "document 1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever is converted, the result can be read, and a second conversion changes nothing.
func FuzzConvert(f *testing.F) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		documents, err := convert.Convert(data, options())
		if err != nil {
			return
		}
		out, err := convert.Render(documents)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := state.Decode(out); err != nil {
			t.Fatalf("%v in the result:\n%s", err, out)
		}
	})
}
