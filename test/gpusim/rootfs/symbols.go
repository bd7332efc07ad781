package rootfs

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
)

// hideSymbols makes a library look older: the functions of these names cannot be found in it.
func hideSymbols(path string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	library, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	symbols, err := library.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("symbols of %s: %w", path, err)
	}
	table := library.SectionByType(elf.SHT_DYNSYM)
	hidden := map[string]bool{}
	for _, name := range names {
		hidden[name] = false
	}
	for i := range symbols {
		if _, asked := hidden[symbols[i].Name]; !asked {
			continue
		}
		hidden[symbols[i].Name] = true
		// The list leaves out entry zero. An entry with the empty name is found by nobody.
		at := table.Offset + uint64(i+1)*elf.Sym64Size
		binary.LittleEndian.PutUint32(data[at:], 0)
	}
	for name, found := range hidden {
		if !found {
			return fmt.Errorf("driver.lacks: nvml.h declares no function %q", name)
		}
	}
	return os.WriteFile(path, data, 0o644)
}
