package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func execute(t *testing.T, args ...string) error {
	t.Helper()
	cmd := command()
	cmd.SetArgs(args)
	return cmd.ExecuteContext(t.Context())
}

func TestCommandBuildsAnImage(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "86400")
	dir := t.TempDir()
	config, out := filepath.Join(dir, "image.yaml"), filepath.Join(dir, "x.tar")
	yaml := "name: localhost/a:1\nfiles: [{path: /a, source: \"${DIR}/image.yaml\"}]\nconfig: {entrypoint: [/a]}\n"
	if err := os.WriteFile(config, []byte(yaml), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := execute(t, "--config", config, "--out", out, "--define", "DIR="+dir, "--platform", "linux/arm64", "--name", "localhost/b:2"); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("localhost/b:2")
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(out, &tag)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil || c.Architecture != "arm64" || !c.Created.Equal(time.Unix(86400, 0)) {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestCommandNamesTheFault(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "image.yaml")
	if err := os.WriteFile(config, []byte("name: localhost/a:1\nfiles: [{path: /a, content: x}]\nconfig: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "x.tar")
	tests := map[string]struct {
		args []string
		want string
	}{
		"no output":   {[]string{"--config", config}, "out"},
		"no file":     {[]string{"--config", config + "x", "--out", out}, "image.yamlx"},
		"windows":     {[]string{"--config", config, "--out", out, "--platform", "windows/amd64"}, "platform"},
		"no machine":  {[]string{"--config", config, "--out", out, "--platform", "linux"}, "platform"},
		"bad name":    {[]string{"--config", config, "--out", out, "--name", "A B"}, "name"},
		"an argument": {[]string{"--out", out, "x"}, "x"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := execute(t, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestSourceDate(t *testing.T) {
	for _, bad := range []string{"x", "-1", "1.5"} {
		if _, err := sourceDate(bad); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
	if got, err := sourceDate(""); err != nil || got.Unix() != 0 {
		t.Errorf("unset: got %s, %v", got, err)
	}
}
