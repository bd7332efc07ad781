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
