package nodefile_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFiguresHaveASource wants each figure of the boards and of the machines to name where it comes
// from: by a tag of the file's legend, behind the field or behind the block that the field is in.
func TestFiguresHaveASource(t *testing.T) {
	// What names things, and says nothing of hardware.
	names := []string{"apiVersion", "name", "description", "board", "extends"}
	var files []string
	for _, dir := range []string{"boards", "presets"} {
		found, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil || len(found) < 10 {
			t.Fatalf("%s: %d files, %v", dir, len(found), err)
		}
		files = append(files, found...)
	}
	field, tag := regexp.MustCompile(`(?m)^([a-zA-Z0-9]+):(.*)$`), regexp.MustCompile(`\[([A-Z?])(?:\+[A-Z])*\]`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "# Sources: ")
		legend, _, _ := strings.Cut(rest, "\n"+field.FindString(string(text)))
		var known []string
		for _, m := range tag.FindAllStringSubmatch(legend, -1) {
			known = append(known, m[1])
		}
		for _, m := range field.FindAllStringSubmatch(string(text), -1) {
			name, value := m[1], m[2]
			if slices.Contains(names, name) || strings.TrimSpace(value) == `""` {
				continue
			}
			_, comment, _ := strings.Cut(value, " #")
			tags := tag.FindAllStringSubmatch(comment, -1)
			if len(tags) == 0 {
				t.Errorf("%s: %s names no source", file, name)
			}
			for _, m := range tags {
				if !slices.Contains(known, m[1]) {
					t.Errorf("%s: %s: the legend has no source [%s]", file, name, m[1])
				}
			}
		}
	}
}
