package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What commands print, in every format that they have, in testdata/golden. After a change:
// UPDATE=1 go test ./pkg/kubectlgpu/command -run TestGolden, and read the difference.
func TestGolden(t *testing.T) {
	slices := save(t, "slices.yaml", prints(t, "slice-template --preset two-islands --node-name node-1"))
	scene, pods := "testdata/scene.yaml", "testdata/pods.yaml"
	from := " --from " + slices + "," + scene
	formats := func(args string) map[string]string {
		return map[string]string{"txt": args, "wide.txt": args + " -o wide", "yaml": args + " -o yaml", "json": args + " -o json"}
	}
	commands := map[string]map[string]string{
		"get":           formats("get" + from),
		"tree":          {"txt": "tree" + from, "wide.txt": "tree -o wide" + from},
		"tree-mig":      {"txt": "tree --preset hgx-h100-8 --mig-devices static --mig-layout mixed --mig-layout-file " + save(t, "l.yaml", mixedLayout)},
		"describe":      formats("describe gpu-0000-61-00-0" + from),
		"describe-used": {"txt": "describe gpu-0000-01-00-0" + from},
		"explain-pod":   formats("explain pod waits -n team-b --search 10m" + from),
		"explain-claim": {"txt": "explain claim eight -n team-b --search 10m" + from},
		"explain-held":  {"txt": "explain claim train -n team-a --search 10m" + from, "yaml": "explain claim train -n team-a --search 10m -o yaml" + from},
		"plan":          formats("plan --search 10m -f " + pods + from),
		"convert":       {"yaml": "convert -f " + pods},
		"advise":        formats("advise --weights-gb 14 --tenants 5 --gpu H100-80"),
		"advise-none":   {"txt": "advise --weights-gb 140 --gpu A30"},
		"audit":         formats("audit -f " + pods),
		"doctor":        formats("doctor" + from),
	}
	for name, all := range commands {
		for extension, args := range all {
			t.Run(name+"."+extension, func(t *testing.T) {
				got := prints(t, args)
				path := filepath.Join("testdata", "golden", name+"."+extension)
				if os.Getenv("UPDATE") != "" {
					if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", args, diff)
				}
			})
		}
	}
	files, err := filepath.Glob("testdata/golden/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name, extension, _ := strings.Cut(filepath.Base(file), ".")
		if commands[name][extension] == "" {
			t.Errorf("%s is of no command", file)
		}
	}
}

const mixedLayout = `
version: v1
mig-configs:
  mixed:
  - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 2}}
  - {devices: [1], mig-enabled: true, mig-devices: {7g.80gb: 1}}
`
