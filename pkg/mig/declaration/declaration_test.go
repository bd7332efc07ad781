package declaration_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/declaration"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/test/kubeapi"
)

const (
	driver     = "gpu.nvidia.com"
	annotation = driver + "/mig.config.state"
	file       = `
version: v1
mig-configs:
  whole: [{devices: all, mig-enabled: false}]
  seven: [{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}]
`
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layouts")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func node(pairs ...string) declaration.Node {
	n := declaration.Node{Labels: map[string]string{}, Annotations: map[string]string{}}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		if key == annotation {
			n.Annotations[key] = value
			continue
		}
		n.Labels[key] = value
	}
	return n
}

func snapshot(t *testing.T) inventory.Snapshot {
	s := migtest.Snapshot(t, "hgx-h100-8")
	s.GPUs = s.GPUs[:1]
	return s
}

func TestLayouts(t *testing.T) {
	s := snapshot(t)
	for name, c := range map[string]struct {
		text, fallback string
		node           *declaration.Node
		want           string
		err            string
	}{
		"not read yet":       {file, "seven", nil, "", "not read yet"},
		"the setting":        {file, "seven", new(node()), "7 x 1g.10gb", ""},
		"the label wins":     {file, "seven", new(node("nvidia.com/mig.config=whole")), "MIG mode off", ""},
		"nothing":            {file, "", new(node()), "", ""},
		"unknown":            {file, "", new(node("nvidia.com/mig.config=x")), "", `no MIG layout "x": the file has seven, whole`},
		"a bad file":         {"version: v7", "whole", new(node()), "", `version "v7"`},
		"a bad file, unused": {"version: v7", "", new(node()), "", ""},
		"a manager":          {file, "seven", new(node("nvidia.com/gpu.deploy.mig-manager=true")), "7 x 1g.10gb", "another tool"},
		"no manager":         {file, "seven", new(node("nvidia.com/gpu.deploy.mig-manager=false")), "7 x 1g.10gb", ""},
		"another's state":    {file, "seven", new(node("nvidia.com/mig.config.state=success")), "7 x 1g.10gb", "nvidia.com/mig.config.state=success, which this driver did not write"},
		"overwritten":        {file, "seven", new(node("nvidia.com/mig.config.state=rebooting", annotation+"=success")), "7 x 1g.10gb", "rebooting"},
		"ours":               {file, "seven", new(node("nvidia.com/mig.config.state=success", annotation+"=success")), "7 x 1g.10gb", ""},
		"another, unused":    {file, "", new(node("nvidia.com/mig.config.state=success")), "", "another tool"},
	} {
		t.Run(name, func(t *testing.T) {
			source := declaration.NewSource(write(t, c.text), c.fallback, driver)
			source.Read()
			if c.node != nil {
				source.Observe(*c.node)
			}
			layouts, err := source.Layouts(s)
			got := ""
			if l, ok := layouts[s.GPUs[0].PCI]; ok {
				got = l.String()
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if got != c.want || !strings.Contains(text, c.err) || (c.err == "") != (err == nil) {
				t.Errorf("layout %q, error %v; want %q, %q", got, err, c.want, c.err)
			}
			if source.Known() != (c.node != nil) {
				t.Errorf("known is %t", source.Known())
			}
		})
	}
	source := declaration.NewSource(filepath.Join(t.TempDir(), "none"), "seven", driver)
	source.Read()
	source.Observe(node())
	if _, err := source.Layouts(s); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	other := new(declaration.OtherToolError)
	source.Observe(node("nvidia.com/gpu.deploy.mig-manager=true"))
	if _, err := source.Layouts(s); !errors.As(err, &other) {
		t.Errorf("error %v", err)
	}
}

// What changed is known, so that nothing is derived anew for a heartbeat.
func TestChanges(t *testing.T) {
	path := write(t, file)
	source := declaration.NewSource(path, "", driver)
	steps := []struct {
		what string
		do   func() bool
		want bool
	}{
		{"first", source.Read, true},
		{"again", source.Read, false},
		{"broken", func() bool { _ = os.WriteFile(path, []byte("x"), 0o600); return source.Read() }, true},
		{"still broken", source.Read, false},
		{"mended", func() bool { _ = os.WriteFile(path, []byte(file), 0o600); return source.Read() }, true},
		{"gone", func() bool { _ = os.Remove(path); return source.Read() }, true},
		{"still gone", source.Read, false},
		{"node", func() bool { return source.Observe(node()) }, true},
		{"the same node", func() bool { return source.Observe(node("zone=1")) }, false},
		{"a label", func() bool { return source.Observe(node("nvidia.com/mig.config=whole")) }, true},
		{"our annotation", func() bool { return source.Observe(node("nvidia.com/mig.config=whole", annotation+"=failed")) }, true},
		{"no file", declaration.NewSource("", "", driver).Read, false},
	}
	for _, s := range steps {
		if got := s.do(); got != s.want {
			t.Errorf("%s: changed %t", s.what, got)
		}
	}
	if source.Config() != "whole" {
		t.Errorf("configuration %q", source.Config())
	}
}

// The state goes to the node once, is known as ours, and is taken away again; the label of
// another tool is left alone.
func TestNodeIsToldAndWatched(t *testing.T) {
	api, err := kubeapi.Start(kubeapi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = api.Close() }()
	named := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	if err := api.Put(named("a"), named("b")); err != nil {
		t.Fatal(err)
	}
	client, err := api.Client("plugin")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	source := declaration.NewSource(write(t, file), "seven", driver)
	source.Read()
	seen := make(chan declaration.Node, 16)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		declaration.Watch(ctx, client, "a", func(n declaration.Node) {
			source.Observe(n)
			seen <- n
		})
	}()
	defer func() { cancel(); <-ended }()
	if n := <-seen; len(n.Labels) != 0 {
		t.Errorf("node %+v", n)
	}
	tell := func(state declaration.State) {
		t.Helper()
		if err := source.Tell(ctx, client, "a", state); err != nil {
			t.Fatal(err)
		}
	}
	tell(declaration.Pending)
	if n := <-seen; n.Labels[declaration.StateLabel] != "pending" || n.Annotations[annotation] != "pending" {
		t.Errorf("node %+v", n)
	}
	tell(declaration.Pending)
	tell(declaration.Success)
	<-seen
	writes := func() int { return len(api.Requests(kubeapi.Match{User: "plugin", Writes: true})) }
	if n := writes(); n != 2 {
		t.Errorf("%d writes", n)
	}
	if _, err := source.Layouts(snapshot(t)); err != nil {
		t.Errorf("our own state is taken for another tool's: %v", err)
	}
	tell("")
	if n := <-seen; len(n.Labels) != 0 || len(n.Annotations) != 0 {
		t.Errorf("node %+v", n)
	}
	theirs := named("a")
	theirs.Labels = map[string]string{declaration.StateLabel: "rebooting"}
	if err := api.Put(theirs); err != nil {
		t.Fatal(err)
	}
	<-seen
	tell(declaration.Success)
	if n := writes(); n != 3 {
		t.Errorf("%d writes", n)
	}
	theirs.Labels = nil
	if err := api.Put(theirs); err != nil {
		t.Fatal(err)
	}
	<-seen
	if err := source.Tell(ctx, client, "nobody", declaration.Success); err == nil {
		t.Error("a node that does not exist was told")
	}
	unknown := new(layout.UnknownConfigError)
	theirs.Labels = map[string]string{declaration.ConfigLabel: "x"}
	if err := api.Put(theirs); err != nil {
		t.Fatal(err)
	}
	<-seen
	if _, err := source.Layouts(snapshot(t)); !errors.As(err, &unknown) || !slices.Equal(unknown.Known, []string{"seven", "whole"}) {
		t.Errorf("error %v", err)
	}
}

// A slip in the file or in the label is told, and opens no GPU that had a layout.
func TestASlipOpensNothing(t *testing.T) {
	s := snapshot(t)
	path := write(t, file)
	source := declaration.NewSource(path, "", driver)
	source.Read()
	source.Observe(node("nvidia.com/mig.config=seven"))
	before, err := source.Layouts(s)
	if err != nil || len(before) == 0 {
		t.Fatal(before, err)
	}
	same := func(what string) {
		t.Helper()
		if got, err := source.Layouts(s); err == nil || !reflect.DeepEqual(before, got) {
			t.Errorf("%s: %v, %v; want an error, and %v", what, got, err, before)
		}
	}
	source.Observe(node("nvidia.com/mig.config=sevne"))
	same("a label")
	if err := os.WriteFile(path, []byte("version: v7"), 0o600); err != nil {
		t.Fatal(err)
	}
	source.Read()
	same("label and file")
	source.Observe(node("nvidia.com/mig.config=seven"))
	same("the file")
	source.Observe(node())
	if got, err := source.Layouts(s); err != nil || got != nil {
		t.Errorf("without a label: %v, %v", got, err)
	}
	source.Observe(node("nvidia.com/mig.config=sevne"))
	if got, err := source.Layouts(s); err == nil || got != nil {
		t.Errorf("an unknown one after none: %v, %v", got, err)
	}
}
