//go:build e2e

package e2e

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/docs/commands"
	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/loopback"
)

// TestDocs runs the commands of the documentation that need a cluster: those of a page in their order,
// in a namespace where a pod with a GPU runs already.
func TestDocs(t *testing.T) {
	blocks, err := commands.Read(shared.Repository)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string][]commands.Block{}
	for _, b := range blocks {
		if b.Rule.Where == commands.Cluster {
			pages[b.Page] = append(pages[b.Page], b)
		}
	}
	dir := documentedTree(t)
	for page, blocks := range pages {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			follow(t, dir, blocks)
		})
	}
}

// follow runs blocks one after the other.
func follow(t *testing.T, dir string, blocks []commands.Block) {
	t.Helper()
	p := newPack(t)
	pod, _ := p.start("your-pod", islands, request{})
	values := map[string]string{
		"NS": rig.Namespace, "POD": "pod/" + p.plugin(islands).Name, "NODE": cluster.NodeName(islands),
		"YOUR-POD": pod.Name, "YOUR-CLAIM": rig.ClaimNames(pod)[0],
	}
	environment := []string{"KUBECONFIG=" + p.config, "PATH=" + filepath.Join(dir, "bin") + ":" + p.Cluster.Bin + ":" + os.Getenv("PATH")}
	ctx, cancel := context.WithTimeout(t.Context(), packLimit)
	defer cancel()
	for _, b := range blocks {
		// The words for the reader's own come first: POD is in YOUR-POD.
		text := b.Fill(map[string]string{"YOUR-POD": values["YOUR-POD"], "YOUR-CLAIM": values["YOUR-CLAIM"]})
		// A port of the machine may be somebody's; an address of its own is nobody's.
		host := loopback.Host()
		b.Text = strings.NewReplacer("port-forward ", "port-forward --address "+host+" ", "localhost:8080", host+":8080").Replace(text)
		out, err := commands.Run(ctx, dir, environment, "", b.Fill(map[string]string{"NS": values["NS"], "POD": values["POD"], "NODE": values["NODE"]}))
		if err != nil || !strings.Contains(out, b.Rule.Says) {
			t.Errorf("%v, want %q of\n%s\n%s", err, b.Rule.Says, text, out)
		}
	}
}

// documentedTree is the repository as a reader's shell has it, with examples whose image the nodes
// have, and with kubectl gpu installed.
func documentedTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	specs := filepath.Join(shared.Repository, "demo/specs")
	must(filepath.WalkDir(specs, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(specs, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, "demo/specs", name)
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, exampleImage.ReplaceAll(text, []byte(cluster.WorkloadImage)), 0o644)
	}))
	must(os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	self, err := os.Executable()
	must(err)
	// This program is kubectl gpu, too; see TestMain.
	must(os.Symlink(self, filepath.Join(dir, "bin", pluginName)))
	return dir
}
