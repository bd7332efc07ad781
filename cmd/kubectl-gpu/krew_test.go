package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	semver "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"
)

const krew = "../../deployments/krew"

// plugin is krew's format of a plugin, krew.googlecontainertools.github.com/v1alpha2.
type plugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Caveats          string     `json:"caveats"`
		Platforms        []platform `json:"platforms"`
	} `json:"spec"`
}

type platform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
	Files  []struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"files"`
}

// The manifest is what krew takes: its fields, a version, and for each platform one archive with the
// program in it.
func TestKrewManifest(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(krew, "gpu.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var p plugin
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		t.Fatal(err)
	}
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" || p.Metadata.Name != "gpu" {
		t.Errorf("%s %s %q", p.APIVersion, p.Kind, p.Metadata.Name)
	}
	if _, err := semver.ParseSemantic(p.Spec.Version); err != nil || !strings.HasPrefix(p.Spec.Version, "v") {
		t.Errorf("version %q: %v", p.Spec.Version, err)
	}
	const longest = 50
	if n := len(p.Spec.ShortDescription); n == 0 || n > longest || p.Spec.Description == "" || p.Spec.Homepage == "" {
		t.Errorf("%d characters of short description, at most %d; %d of description; home page %q", n, longest, len(p.Spec.Description), p.Spec.Homepage)
	}
	seen := map[string]bool{}
	for _, at := range p.Spec.Platforms {
		system := at.Selector.MatchLabels["os"] + "_" + at.Selector.MatchLabels["arch"]
		if len(at.Selector.MatchLabels) != 2 || seen[system] {
			t.Errorf("selector %v is there twice, or not of os and arch", at.Selector.MatchLabels)
		}
		seen[system] = true
		if !strings.HasPrefix(at.URI, "https://") || !strings.Contains(at.URI, p.Spec.Version) || !strings.HasSuffix(at.URI, "_"+system+".tar.gz") {
			t.Errorf("%s: archive %s", system, at.URI)
		}
		if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(at.SHA256) {
			t.Errorf("%s: sha256 %q", system, at.SHA256)
		}
		found := false
		for _, f := range at.Files {
			found = found || f.From == at.Bin && f.To == "."
		}
		if at.Bin != "kubectl-gpu" || !found {
			t.Errorf("%s: program %q of files %+v", system, at.Bin, at.Files)
		}
	}
	if !seen["linux_amd64"] || !seen["linux_arm64"] {
		t.Errorf("platforms %v", seen)
	}
}

// What kubectl runs for completion asks the program, with the words as they are.
func TestCompletionProgram(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\nfor word; do echo \"[$word]\"; done\n"
	if err := os.WriteFile(filepath.Join(dir, "kubectl-gpu"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(krew, "kubectl_complete-gpu"), "explain", "pod", "a b", "")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.Output()
	if err != nil || string(out) != "[__complete]\n[explain]\n[pod]\n[a b]\n[]\n" {
		t.Errorf("%v: %s", err, out)
	}
}
