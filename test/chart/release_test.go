package chart

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	kubefake "helm.sh/helm/v4/pkg/kube/fake"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
)

// remembering is a cluster whose releases are kept in memory and whose objects go nowhere.
func remembering() *Cluster {
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = common.KubeVersion{Version: "v1.37.0", Major: "1", Minor: "37"}
	config := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	config.Releases = storage.Init(driver.NewMemory())
	config.KubeClient = &kubefake.PrintingKubeClient{Out: io.Discard, LogOutput: io.Discard}
	config.Capabilities = capabilities
	return &Cluster{config: config, wait: time.Minute}
}

func TestReleaseLife(t *testing.T) {
	cluster := remembering()
	r := Release{Name: "gpus", Namespace: "gpu-system", Chart: chartDir}
	if _, err := cluster.Upgrade(t.Context(), r); err == nil {
		t.Error("a release that is not there was upgraded")
	}
	notes, err := cluster.Install(t.Context(), r)
	if err != nil || !strings.Contains(notes, "namespace gpu-system") {
		t.Fatalf("install: %v, notes %q", err, notes)
	}
	if _, err := cluster.Install(t.Context(), r); err == nil {
		t.Error("installed twice")
	}
	r.Values.Set = []string{"driverName=gpu.example.com"}
	if notes, err = cluster.Upgrade(t.Context(), r); err != nil || !strings.Contains(notes, "gpu.example.com") {
		t.Fatalf("upgrade: %v, notes %q", err, notes)
	}
	r.Values.Set = nil
	if notes, err = cluster.Upgrade(t.Context(), r); err != nil || strings.Contains(notes, "gpu.example.com") {
		t.Errorf("upgrade: %v; a value of the former revision was kept: %q", err, notes)
	}
	r.Values.Set = []string{"nonsense=1"}
	if _, err := cluster.Upgrade(t.Context(), r); err == nil {
		t.Error("upgraded with a value that does not exist")
	}
	if err := cluster.Restore("gpus"); err != nil {
		t.Errorf("restore: %v", err)
	}
	r.Values.Set = nil
	if _, err := cluster.Upgrade(t.Context(), r); err != nil {
		t.Errorf("upgrade after a restoration: %v", err)
	}
	if err := cluster.Restore("no-such-release"); err == nil {
		t.Error("a release that is not there was restored")
	}
	for range 2 {
		if err := cluster.Uninstall("gpus"); err != nil {
			t.Errorf("uninstall: %v", err)
		}
	}
}

func TestBadPathsAreNamed(t *testing.T) {
	for name, r := range map[string]Release{
		"no-such-chart":       {Name: "x", Namespace: "x", Chart: "no-such-chart"},
		"no-such-values.yaml": {Name: "x", Namespace: "x", Chart: chartDir, Values: Values{Files: []string{"no-such-values.yaml"}}},
	} {
		if _, err := Render(t.Context(), r, reference); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := remembering().Install(t.Context(), r); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Package("no-such-chart", t.TempDir(), "", "", time.Unix(0, 0)); err == nil {
		t.Error("nothing was packed")
	}
	if _, err := Package(chartDir, t.TempDir(), "one", "", time.Unix(0, 0)); err == nil {
		t.Error("a version that is none was packed")
	}
}

func TestPackage(t *testing.T) {
	first, err := Package(chartDir, t.TempDir(), "1.2.3", "4.5.6", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(first) != "gpu-dra-driver-1.2.3.tgz" {
		t.Errorf("packed as %s", first)
	}
	second, err := Package(chartDir, t.TempDir(), "1.2.3", "4.5.6", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if string(readFile(t, first)) != string(readFile(t, second)) {
		t.Error("the same chart packed twice gives two packages")
	}
	names := packed(t, first)
	for _, want := range []string{"Chart.yaml", "README.md", "values.yaml", "values.schema.json", "templates/NOTES.txt", "templates/daemonset.yaml"} {
		if !slices.Contains(names, "gpu-dra-driver/"+want) {
			t.Errorf("%s is missing in %v", want, names)
		}
	}
	if slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "/ci/") }) {
		t.Errorf("the test's values are packed: %v", names)
	}
	r := Release{Name: "x", Namespace: "x", Chart: first}
	rendered, err := Render(t.Context(), r, reference)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(rendered.Manifest, "gpu-dra-driver:v4.5.6") {
		t.Error("the image is not of the packed version")
	}
	r.Chart, r.Values.Set = chartDir, []string{"image.tag=v4.5.6"}
	fromDir, err := Render(t.Context(), r, reference)
	if err != nil {
		t.Fatal(err)
	}
	unversioned := func(s string) string {
		return strings.NewReplacer("gpu-dra-driver-1.2.3", "", "gpu-dra-driver-0.1.0", "", `version: "4.5.6"`, "", `version: "0.1.0"`, "").Replace(s)
	}
	if diff := cmp.Diff(unversioned(fromDir.Manifest), unversioned(rendered.Manifest)); diff != "" {
		t.Errorf("the package renders otherwise than its directory:\n%s", diff)
	}
}

func packed(t *testing.T, path string) []string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for reader := tar.NewReader(unzipped); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
	}
}
