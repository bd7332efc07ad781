package rootfs

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// StubName is the SONAME of the template from which all stub libraries are made. It is as
// long as the longest name that will replace it.
const StubName = "libgpusim-stub-template-with-room-for-any-name.so.0"

// library is one shared library of the driver: its base name and the number of its SONAME.
type library struct {
	name string
	abi  string
	part string
}

// libraries are those a compute driver installs, as far as tools look for them by name.
func libraries() []library {
	return []library{
		{"libcuda", "1", ""},
		{"libcudadebugger", "1", "computeLibraries"},
		{"libnvidia-ptxjitcompiler", "1", "computeLibraries"},
		{"libnvidia-nvvm", "4", "computeLibraries"},
		{"libnvidia-opencl", "1", "computeLibraries"},
		{"libnvidia-cfg", "1", "computeLibraries"},
		{"libnvidia-allocator", "1", "computeLibraries"},
		{"libnvidia-gpucomp", "", "computeLibraries"},
		{"libnvcuvid", "1", "computeLibraries"},
		{"libnvidia-encode", "1", "computeLibraries"},
		{"libnvoptix", "1", "graphics"},
		{"libEGL_nvidia", "0", "graphics"},
		{"libGLX_nvidia", "0", "graphics"},
		{"libnvidia-glcore", "", "graphics"},
	}
}

// driver lays out the files of a driver installation.
func (b *Builder) driver() error {
	if err := os.MkdirAll(b.Lib(), 0o755); err != nil {
		return err
	}
	if err := b.management(); err != nil {
		return err
	}
	template, err := os.ReadFile(b.Native.Stub)
	if err != nil {
		return err
	}
	for _, lib := range libraries() {
		if lib.part == "" || b.has(lib.part) {
			if err := b.stub(template, lib); err != nil {
				return err
			}
		}
	}
	return b.otherFiles()
}

// management installs what really works: the library and the tools.
func (b *Builder) management() error {
	name := "libnvidia-ml.so." + b.Version
	if err := copyFile(b.Native.Library, filepath.Join(b.Lib(), name), 0o644); err != nil {
		return err
	}
	if err := hideSymbols(filepath.Join(b.Lib(), name), b.Node.Driver.Lacks); err != nil {
		return err
	}
	if err := link(name, filepath.Join(b.Lib(), "libnvidia-ml.so.1")); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(b.Native.Programs)) {
		if part, optional := programParts()[name]; optional && !b.has(part) {
			continue
		}
		if err := copyFile(b.Native.Programs[name], filepath.Join(b.Driver(), "usr/bin", name), 0o755); err != nil {
			return err
		}
	}
	if client, ok := b.Native.Programs[clientName]; ok {
		return copyFile(client, b.ContainerClient(), 0o755)
	}
	return nil
}

// clientName is the program that stands for one that computes.
const clientName = "gpusim-client"

// ContainerClient is a second file of gpusim-client, among the libraries and named like one:
// tools that collect a driver's libraries by version take it into containers with them.
func (l Layout) ContainerClient() string {
	return filepath.Join(l.Lib(), "libgpusim-client.so."+l.Version)
}

// programParts names the part that a node file leaves out for each optional program.
func programParts() map[string]string {
	return map[string]string{"nvidia-smi": "smi", "nvidia-cuda-mps-control": "mps", "nvidia-cuda-mps-server": "mps"}
}

// stub installs an empty library with the right names. Containers get its links from the
// SONAME inside, so that must be right.
func (b *Builder) stub(template []byte, lib library) error {
	file := lib.name + ".so." + b.Version
	soname := file
	if lib.abi != "" {
		soname = lib.name + ".so." + lib.abi
	}
	patched, err := patchSoname(template, soname)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.Lib(), file), patched, 0o644); err != nil {
		return err
	}
	if lib.abi == "" {
		return nil
	}
	if err := link(file, filepath.Join(b.Lib(), soname)); err != nil {
		return err
	}
	return link(soname, filepath.Join(b.Lib(), lib.name+".so"))
}

func patchSoname(template []byte, soname string) ([]byte, error) {
	if len(soname) > len(StubName) {
		// Such a driver version is odd but legal; the file keeps a cut name.
		soname = soname[:len(StubName)]
	}
	field := make([]byte, len(StubName))
	copy(field, soname)
	if bytes.Count(template, []byte(StubName)) != 1 {
		return nil, fmt.Errorf("stub library does not hold the name %s once: rebuild the native parts", StubName)
	}
	return bytes.Replace(template, []byte(StubName), field, 1), nil
}

// otherFiles installs what is only looked for, never used here.
func (b *Builder) otherFiles() error {
	script := "#!/bin/sh\n# Part of a simulated driver: does nothing.\nexit 0\n"
	files := []struct {
		path, content string
		mode          os.FileMode
		part          string
	}{
		{"usr/bin/nvidia-persistenced", script, 0o755, "persistenced"},
		{"usr/bin/nvidia-debugdump", script, 0o755, ""},
		{"lib/firmware/nvidia/" + b.Version + "/gsp_ga10x.bin", "simulated\n", 0o644, "firmware"},
		{"lib/firmware/nvidia/" + b.Version + "/gsp_tu10x.bin", "simulated\n", 0o644, "firmware"},
		{"usr/share/glvnd/egl_vendor.d/10_nvidia.json", "{\"file_format_version\": \"1.0.0\", \"ICD\": {\"library_path\": \"libEGL_nvidia.so.0\"}}\n", 0o644, "graphics"},
		{"etc/vulkan/icd.d/nvidia_icd.json", "{\"file_format_version\": \"1.0.1\", \"ICD\": {\"library_path\": \"libGLX_nvidia.so.0\", \"api_version\": \"1.4\"}}\n", 0o644, "graphics"},
	}
	for _, f := range files {
		if f.part != "" && !b.has(f.part) {
			continue
		}
		path := filepath.Join(b.Driver(), f.path)
		if err := write(path, f.content); err != nil {
			return err
		}
		if err := os.Chmod(path, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// copyFile replaces path by a copy, so that a process that runs the old one is not disturbed.
func copyFile(from, path string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := remove(path); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
