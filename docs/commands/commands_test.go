package commands_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/docs/commands"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/command"
)

const repository = "../.."

// TestMain is the command line of kubectl gpu, too, so that a shell can run it without another build.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "kubectl-gpu" {
		if err := command.New("v0.0.0-test", command.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}).ExecuteContext(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func blocks(t *testing.T, where commands.Where) []commands.Block {
	t.Helper()
	all, err := commands.Read(repository)
	if err != nil {
		t.Fatal(err)
	}
	var found []commands.Block
	for _, b := range all {
		if b.Rule.Where == where {
			found = append(found, b)
		}
	}
	return found
}

// Every block of commands in the documents is tested somewhere, or says why not.
func TestEveryBlockIsListed(t *testing.T) {
	count := map[commands.Where]int{}
	for _, where := range []commands.Where{commands.Here, commands.Chart, commands.Cluster, commands.Never} {
		count[where] = len(blocks(t, where))
	}
	if count[commands.Here] < 3 || count[commands.Chart] < 5 || count[commands.Cluster] < 10 || count[commands.Never] > count[commands.Cluster] {
		t.Errorf("blocks by where they are tested: %v", count)
	}
}

// shell has make look for its target only, and kubectl know kubectl gpu only.
const shell = `
make() { grep -q "^$1:" Makefile; }
kubectl() { [ "$1" = gpu ] && shift && kubectl-gpu "$@"; }
`

func TestBlocksThatNeedNoCluster(t *testing.T) {
	dir := t.TempDir()
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"bin/kubectl-gpu": self, "demo": filepath.Join(root, "demo"), "pkg": filepath.Join(root, "pkg"), "Makefile": filepath.Join(root, "Makefile"),
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	path := "PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")
	for _, b := range blocks(t, commands.Here) {
		t.Run(b.Page+": "+b.Lines()[0], func(t *testing.T) {
			t.Parallel()
			out, err := commands.Run(t.Context(), dir, []string{path}, shell, b.Text)
			if err != nil || !strings.Contains(out, b.Rule.Says) {
				t.Errorf("%v, want %q in\n%s", err, b.Rule.Says, out)
			}
		})
	}
}

func TestLinesAndFill(t *testing.T) {
	b := commands.Block{Text: "# look\nkubectl get \\\n  pods NODE\n\nkubectl logs POD NODES\n"}
	if diff := cmp.Diff([]string{"kubectl get    pods NODE", "kubectl logs POD NODES"}, b.Lines()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("# look\nkubectl get \\\n  pods node-1\n\nkubectl logs p NODES\n", b.Fill(map[string]string{"NODE": "node-1", "POD": "p"})); diff != "" {
		t.Errorf("filled (-want +got):\n%s", diff)
	}
}

// A document with a block that nobody lists, or of no language, is a fault, and each is named.
func TestUnlisted(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"README.md":            "```sh\nrm -rf /tmp/x\n```\n",
		"demo/specs/README.md": "```\nno language\n```\n",
		"test/e2e/README.md":   "  ```sh\n  make test-e2e\n  ```\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := commands.Read(dir)
	if err == nil {
		t.Fatal("all is well")
	}
	for _, want := range []string{
		`README.md: docs/commands/commands.yaml does not say how the block that begins with "rm -rf /tmp/x" is tested`,
		`demo/specs/README.md: the block that begins with "no language" has the language ""`,
		`0 blocks of docs/install.md begin with`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
	if len(all) != 2 || all[1].Text != "make test-e2e\n" || all[1].Rule.Where != commands.Never {
		t.Errorf("blocks: %+v", all)
	}
	if _, err := commands.Read(filepath.Join(dir, "absent")); !os.IsNotExist(err) {
		t.Errorf("a repository that is not there: %v", err)
	}
}

// A shell ends at the first command that fails, also within a pipe, and what it printed is kept.
func TestRun(t *testing.T) {
	for text, want := range map[string]string{"echo a; false; echo b": "a\n", "f; false | cat; echo b": "f\n", "echo $X": "x\n"} {
		out, err := commands.Run(t.Context(), t.TempDir(), []string{"X=x"}, "f() { echo f; }", text)
		if out != want || (err == nil) != strings.Contains(text, "$X") {
			t.Errorf("%s: %q, %v", text, out, err)
		}
	}
}
