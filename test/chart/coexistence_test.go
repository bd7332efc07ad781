package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The values that the page about other software gives are values of the chart, and settings that the
// plugin takes.
func TestValuesOfCoexistence(t *testing.T) {
	page := string(readFile(t, "..", "..", "docs", "coexistence.md"))
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(page, -1)
	if len(blocks) < 6 {
		t.Fatalf("found %d blocks of values", len(blocks))
	}
	for i, block := range blocks {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(block[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		_, container := pluginOf(t, valuesFrom(file))
		if err := settings(t, container).Validate(); err != nil {
			t.Errorf("block %d: the plugin would refuse it: %v\n%s", i, err, block[1])
		}
	}
}
