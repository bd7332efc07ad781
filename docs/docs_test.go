// Package docs_test holds the documentation against the repository: what it names must exist.
package docs_test

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const repository = ".."

// pages are the documents by their path from the repository's root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{"README.md": read(t, "README.md")}
	err := filepath.WalkDir(filepath.Join(repository, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		name, err := filepath.Rel(repository, path)
		if err == nil {
			out[name] = read(t, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("found only %d pages", len(out))
	}
	return out
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// all gives the first group of every match.
func all(pattern, text string) []string {
	var out []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// anchors are those of a page's headings, as GitHub makes them.
func anchors(text string) []string {
	var out []string
	for _, h := range all(`(?m)^#+ (.+)$`, text) {
		h = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(h), "")
		out = append(out, strings.ReplaceAll(h, " ", "-"))
	}
	return out
}

// documents are all pages of the repository, also those that lie beside the code.
func documents(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(repository, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(repository, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) == ".md" {
			out[name] = read(t, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// links are the places in the repository that a page leads to, by the link's own words. A folder's
// is its README where it has one, as GitHub shows it.
func links(t *testing.T, name, text string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, link := range all(`\]\(([^)\s]+)\)`, withoutCode(text)) {
		target, err := url.Parse(link)
		if err != nil {
			t.Errorf("%s: link %q: %v", name, link, err)
			continue
		}
		if target.IsAbs() {
			continue
		}
		path := name
		if target.Path != "" {
			path = filepath.Join(filepath.Dir(name), target.Path)
		}
		if _, err := os.Stat(filepath.Join(repository, path, "README.md")); err == nil {
			path = filepath.Join(path, "README.md")
		}
		out[link] = path
	}
	return out
}

func TestLinks(t *testing.T) {
	for name, text := range documents(t) {
		for link, path := range links(t, name, text) {
			info, err := os.Stat(filepath.Join(repository, path))
			if err != nil {
				t.Errorf("%s: link %q leads nowhere", name, link)
				continue
			}
			_, fragment, _ := strings.Cut(link, "#")
			if fragment != "" && (info.IsDir() || !slices.Contains(anchors(read(t, path)), fragment)) {
				t.Errorf("%s: link %q: %s has no such heading", name, link, path)
			}
		}
	}
}

// TestEveryPageIsReached wants a way by links from the README to each page.
func TestEveryPageIsReached(t *testing.T) {
	all := documents(t)
	reached := map[string]bool{"README.md": true}
	for todo := []string{"README.md"}; len(todo) > 0; todo = todo[1:] {
		for _, path := range links(t, todo[0], all[todo[0]]) {
			if _, isPage := all[path]; isPage && !reached[path] {
				reached[path] = true
				todo = append(todo, path)
			}
		}
	}
	for name := range all {
		if !reached[name] {
			t.Errorf("no link leads to %s", name)
		}
	}
}

var (
	fence = regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```")
	span  = regexp.MustCompile("`([^`\n]+)`")
)

func withoutCode(text string) string {
	return span.ReplaceAllString(fence.ReplaceAllString(text, ""), "")
}

// code gives every inline span and every line of a code block; lines that a backslash joins are one.
func code(text string) []string {
	var out []string
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		out = append(out, strings.Split(strings.ReplaceAll(m[1], "\\\n", " "), "\n")...)
	}
	for _, m := range span.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		out = append(out, m[1])
	}
	return out
}

func TestMakeTargets(t *testing.T) {
	targets := all(`(?m)^([a-z][a-z0-9-]*):`, read(t, "Makefile"))
	for name, text := range pages(t) {
		for _, c := range code(text) {
			for _, target := range all(`\bmake ([a-z][a-z0-9-]*)`, c) {
				if !slices.Contains(targets, target) {
					t.Errorf("%s: there is no target %q in the Makefile", name, target)
				}
			}
		}
	}
	for _, target := range all("(?m)^([a-z][a-z0-9-]*):.*## ", read(t, "Makefile")) {
		if known := []string{"help", "packages", "clean"}; slices.Contains(known, target) {
			continue
		}
		if !strings.Contains(read(t, "docs/development.md"), "`make "+target+"`") {
			t.Errorf("docs/development.md does not name make %s", target)
		}
	}
}

// TestTargetsEnd wants every target to end with what to try next: by its last line, or by the program
// that this line runs.
func TestTargetsEnd(t *testing.T) {
	makefile := read(t, "Makefile")
	programs := map[string]string{"/run-demo $(ARGS)": "demo/walkthrough/walk.go", "/run-demo-cluster up": "demo/cluster/demo.go", "/run-demo-cluster down": "demo/cluster/demo.go"}
	for _, target := range all("(?m)^([a-z][a-z0-9-]*):.*## ", makefile) {
		if slices.Contains([]string{"help", "packages", "clean"}, target) {
			continue
		}
		_, recipe, _ := strings.Cut(makefile, "\n"+target+":")
		recipe, _, _ = strings.Cut(recipe, "\n\n")
		last := recipe[strings.LastIndex(recipe, "\n")+1:]
		says := last
		for program, source := range programs {
			if strings.HasSuffix(last, program) {
				says = read(t, source)
			}
		}
		if !regexp.MustCompile(`Next: |next:|so try more:`).MatchString(says) {
			t.Errorf("make %s ends with %q, which says nothing of what to try next", target, last)
		}
	}
}

// Programs of others, whose flags are theirs.
var foreign = regexp.MustCompile(`^\$? *(kubectl|helm|docker|curl|jq|nvidia-smi|nvidia-modprobe|go|ctr)\b`)

func TestFlags(t *testing.T) {
	known := all("(?m)^\\| `--([a-z0-9-]+)` \\|", read(t, "docs/reference/flags.md"))
	known = append(known, "logging-format", "vmodule")
	commands := all("(?m)^\\| `(?:-[a-z], )?--([a-z0-9-]+)` \\|", read(t, "docs/reference/kubectl-gpu.md"))
	known = append(known, commands...)
	if len(known) < 15 {
		t.Fatalf("the page of flags names only %q", known)
	}
	for name, text := range pages(t) {
		for _, c := range code(text) {
			if foreign.MatchString(c) {
				continue
			}
			for _, flag := range all(`(?:^|[\s"'])--([a-z][a-z0-9-]*)`, c) {
				if !slices.Contains(known, flag) {
					t.Errorf("%s: neither the plugin nor kubectl gpu has a flag --%s (in %q)", name, flag, c)
				}
			}
		}
	}
}

// TestChartValues holds the dotted values in code, and those of --set, against values.yaml.
func TestChartValues(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "deployments/helm/gpu-dra-driver/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	for name, text := range pages(t) {
		for _, c := range code(text) {
			for _, path := range append(all(`--set ([A-Za-z.]+)`, c), all(`^((?:kubeletPlugin|deviceClasses|featureGates|image|rbac|podMonitor|admissionPolicy|serviceAccount)\.[A-Za-z.]+)`, c)...) {
				if !hasValue(values, strings.Split(path, ".")) && !inTableOfOthers(name, text, path) {
					t.Errorf("%s: the chart has no value %s", name, path)
				}
			}
		}
	}
}

// hasValue descends; below an empty map everything is allowed.
func hasValue(value any, path []string) bool {
	if len(path) == 0 {
		return true
	}
	values, ok := value.(map[string]any)
	if !ok {
		return false
	}
	if len(values) == 0 {
		return true
	}
	next, ok := values[path[0]]
	return ok && hasValue(next, path[1:])
}

// inTableOfOthers tells whether the value is named as one of another chart.
func inTableOfOthers(page, text, path string) bool {
	const title = "| Value there | Here |"
	_, table, found := strings.Cut(text, title)
	return page == "docs/compatibility.md" && found && strings.Contains(table, "`"+path)
}

func TestMetrics(t *testing.T) {
	known := all("(?m)^\\| `(gpu_dra_[a-z_]+)` \\|", read(t, "docs/reference/metrics.md"))
	for name, text := range pages(t) {
		for _, metric := range all(`\b(gpu_dra_[a-z_]*[a-z])\b`, text) {
			series := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(metric, "")
			if !slices.Contains(known, metric) && !slices.Contains(known, series) {
				t.Errorf("%s: there is no metric %s", name, metric)
			}
		}
	}
}

// TestRunbooks wants every alert of the chart to link to a section of its own, and no other section.
func TestRunbooks(t *testing.T) {
	const page = "docs/runbooks.md"
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "deployments/helm/gpu-dra-driver/files/rules.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			sections = append(sections, r.Alert)
			if want := "RUNBOOK_URL#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
				t.Errorf("%s links to %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
			}
		}
	}
	if got := all("(?m)^## (.+)$", read(t, page)); len(got) < 10 || !slices.Equal(got, sections) {
		t.Errorf("sections of %s: %q, alerts of the chart: %q", page, got, sections)
	}
	if url := "runbookURL: https://github.com/gpu-dra/driver/blob/main/" + page; !strings.Contains(read(t, "deployments/helm/gpu-dra-driver/values.yaml"), url) {
		t.Errorf("the chart's links do not go to %s", page)
	}
}

// TestRecordedSeries holds the names of series that rules record against the chart's rules.
func TestRecordedSeries(t *testing.T) {
	rules := read(t, "deployments/helm/gpu-dra-driver/files/rules.yaml")
	seen := 0
	for name, text := range pages(t) {
		for _, series := range all(`\b([a-z_]+:gpu_[a-z_]+:[a-z0-9]+)\b`, text) {
			seen++
			if !strings.Contains(rules, "record: "+series+"\n") {
				t.Errorf("%s: no rule records %s", name, series)
			}
		}
	}
	if seen == 0 {
		t.Error("no page names a recorded series")
	}
}

// TestReasons wants help for every Event and for every reason of a failed call.
func TestReasons(t *testing.T) {
	help := read(t, "docs/troubleshooting.md") + read(t, "docs/operations.md")
	reasons := all("(?m)^\\| `([A-Za-z]+)` \\|", read(t, "docs/reference/events.md"))
	_, list, found := strings.Cut(read(t, "docs/reference/metrics.md"), "Values of `reason`: ")
	if !found || len(reasons) < 5 {
		t.Fatalf("reference pages without reasons: %q", reasons)
	}
	for _, reason := range append(reasons, all("`([a-z_]+)`", list)...) {
		// A step that fails on the hardware cannot come with whole GPUs, which have no steps.
		if reason != "hardware" && !strings.Contains(help, "`"+reason+"`") {
			t.Errorf("neither docs/troubleshooting.md nor docs/operations.md names %s", reason)
		}
	}
}

func TestExamplesAreListed(t *testing.T) {
	claims := read(t, "docs/claims.md")
	files, err := filepath.Glob(filepath.Join(repository, "demo", "specs", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, f := range files {
		if !strings.Contains(claims, "demo/specs/"+filepath.Base(f)) {
			t.Errorf("docs/claims.md does not name demo/specs/%s", filepath.Base(f))
		}
	}
	for name, text := range pages(t) {
		for _, c := range code(text) {
			for _, path := range all(`\b(demo/specs/[a-z0-9-]+\.yaml)`, c) {
				if _, err := os.Stat(filepath.Join(repository, path)); err != nil {
					t.Errorf("%s: %s does not exist", name, path)
				}
			}
		}
	}
}

// TestMessages wants the words that people search for in the page, and the same in the code.
func TestMessages(t *testing.T) {
	page := read(t, "docs/troubleshooting.md") + read(t, "docs/operations.md")
	for message, source := range map[string]string{
		"the kubelet has not registered this plugin yet: see that it watches ":             "pkg/agent/agent.go",
		"the API server does not hold this node's ResourceSlices yet":                      "pkg/kubeletplugin/publisher.go",
		"feature gates that are off in the cluster: ":                                      "pkg/kubeletplugin/plugin.go",
		"is not below the driver root ":                                                    "pkg/driverroot/driverroot.go",
		"library and loaded kernel module are of different versions; reload the module or": "pkg/inventory/nvml/session/errors.go",
		"the NVIDIA kernel module is not loaded or its device nodes are missing":           "pkg/inventory/nvml/session/errors.go",
		"the device nodes /dev/nvidia* may not be opened; the container has to be":         "pkg/inventory/nvml/session/errors.go",
		"its MIG mode cannot be read: ":                                                    "pkg/inventory/assemble.go",
		" does not return":                                                                 "pkg/inventory/nvml/watchdog/watchdog.go",
		"the PCI bus shows no NVIDIA GPU":                                                  "pkg/inventory/scanner.go",
		"no kernel driver is bound to it":                                                  "pkg/inventory/scanner.go",
		"SR-IOV virtual function of ":                                                      "pkg/inventory/scanner.go",
		"lent to virtual machines as vGPUs":                                                "pkg/inventory/assemble.go",
		"NVML refuses it: ":                                                                "pkg/inventory/assemble.go",
		"the driver has not initialised it yet":                                            "pkg/inventory/assemble.go",
		"cannot be handed out: ":                                                           "pkg/report/report.go",
		" is still prepared for claim ":                                                    "pkg/prepare/errors.go",
		"its pod is not torn down yet. ":                                                   "pkg/prepare/errors.go",
		"the board was replaced":                                                           "pkg/prepare/errors.go",
		"this release does not know how; another release wrote the record":                 "pkg/prepare/steps.go",
		" now (there are: ":                                                                "pkg/claims/errors.go",
		"the claim is not allocated: it was released, or the scheduler is":                 "pkg/claims/errors.go",
		"but it is switched off on this node":                                              "pkg/claims/errors.go",
		"the config of ":                                                                   "pkg/claims/config.go",
		"has no driver: /proc/devices lists none of ":                                      "pkg/cdi/node.go",
		"nvidia-modprobe -u -c=0 -m":                                                       "pkg/cdi/node.go",
		" was not found under the driver root":                                             "pkg/cdi/base.go",
		"(free space or inodes on the file system of the state directory)":                 "pkg/journal/errors.go",
		", this release reads up to ":                                                      "pkg/journal/errors.go",
		" did not get ready in ":                                                           "pkg/prepare/mpssteps/step.go",
		" has an MPS control daemon with other settings":                                   "pkg/prepare/mpssteps/step.go",
		"was not free after ":                                                              "pkg/lock/lock.go",
	} {
		if !strings.Contains(read(t, source), message) {
			t.Errorf("%s does not have the words %q any more", source, message)
		}
		if !strings.Contains(page, strings.TrimSpace(message)) {
			t.Errorf("docs/troubleshooting.md does not have the words %q", message)
		}
	}
}
