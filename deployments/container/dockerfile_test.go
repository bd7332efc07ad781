// Package container holds the description of the driver's image. Its only code is the test
// that keeps the two ways to build the image in step.
package container

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/deployments/container/internal/spec"
)

// finalStage is what the last stage of a Dockerfile says, in the terms of a description.
type finalStage struct {
	Files      map[string]string // path to the program's name
	Config     spec.Config
	BaseGiven  string
	Unexpected []string
}

// parseDockerfile reads the few instructions that the Dockerfile uses.
func parseDockerfile(raw string) finalStage {
	raw = strings.ReplaceAll(raw, "\\\n", " ")
	var s finalStage
	for line := range strings.Lines(raw) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch instruction {
		case "", "#", "ARG":
		case "FROM":
			s = finalStage{BaseGiven: rest, Files: map[string]string{}, Config: spec.Config{Env: map[string]string{}, Labels: map[string]string{}}}
		case "COPY":
			fields := strings.Fields(rest)
			from, to := fields[len(fields)-2], fields[len(fields)-1]
			s.Files[to] = from[strings.LastIndex(from, "/")+1:]
		case "ENV":
			key, value, _ := strings.Cut(rest, "=")
			s.Config.Env[key] = value
		case "LABEL":
			key, value, _ := strings.Cut(rest, "=")
			s.Config.Labels[key] = strings.Trim(value, `"`)
		case "USER":
			s.Config.User = rest
		case "WORKDIR":
			s.Config.WorkingDir = rest
		case "ENTRYPOINT":
			if json.Unmarshal([]byte(rest), &s.Config.Entrypoint) != nil {
				s.Unexpected = append(s.Unexpected, line)
			}
		default:
			s.Unexpected = append(s.Unexpected, line)
		}
	}
	return s
}

// TestDockerfileInStep compares what a runtime and a node see of the two images: programs,
// entry point, user, folder, environment and labels.
func TestDockerfileInStep(t *testing.T) {
	raw, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	got := parseDockerfile(string(raw))
	if len(got.Unexpected) > 0 {
		t.Fatalf("this test does not know %q: teach it what they mean for image.yaml", got.Unexpected)
	}
	want, err := spec.Read("image.yaml", map[string]string{"BIN": "/out", "VERSION": "$VERSION"})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range want.Files {
		files[f.Path] = strings.TrimPrefix(f.Source, "/out/")
	}
	if diff := cmp.Diff(files, got.Files); diff != "" {
		t.Errorf("programs (-image.yaml +Dockerfile):\n%s", diff)
	}
	if diff := cmp.Diff(want.Config, got.Config); diff != "" {
		t.Errorf("configuration (-image.yaml +Dockerfile):\n%s", diff)
	}
	if !strings.Contains(got.BaseGiven, "debian12") {
		t.Errorf("the base is %s: programs are linked with the glibc of Debian 12", got.BaseGiven)
	}
}

// The comparison itself sees a difference.
func TestParseDockerfile(t *testing.T) {
	got := parseDockerfile("FROM a AS build\nUSER 1\nFROM b\nCOPY --from=build /out/x /usr/bin/x\nENTRYPOINT [\"/usr/bin/x\",\\\n \"-y\"]\nVOLUME /v\n")
	if got.Config.User != "" || got.Files["/usr/bin/x"] != "x" || len(got.Config.Entrypoint) != 2 || len(got.Unexpected) != 1 {
		t.Errorf("got %+v", got)
	}
}
