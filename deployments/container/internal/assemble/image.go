package assemble

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Layer is one layer to be: its files and a word on where they came from.
type Layer struct {
	Tree    *Tree
	Comment string
}

// Settings are what an image says of itself and asks of a runtime.
type Settings struct {
	// Architecture is Go's name, such as amd64. The system is always linux.
	Architecture string
	// Created is the time of the image and of every file in it.
	Created    time.Time
	Entrypoint []string
	Cmd        []string
	User       string
	WorkingDir string
	Env        map[string]string
	Labels     map[string]string
}

// Image puts the layers, in order, under one configuration. Empty layers are left out.
func Image(layers []Layer, s Settings) (v1.Image, error) {
	var addenda []mutate.Addendum
	for _, l := range layers {
		if l.Tree.Len() == 0 {
			continue
		}
		content, err := l.Tree.Tar(s.Created)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(content)), nil
		}, tarball.WithCompressionLevel(gzip.BestSpeed))
		if err != nil {
			return nil, fmt.Errorf("make layer %q: %w", l.Comment, err)
		}
		addenda = append(addenda, mutate.Addendum{Layer: layer, History: v1.History{
			Created: v1.Time{Time: s.Created}, CreatedBy: "imagebuild", Comment: l.Comment,
		}})
	}
	img, err := mutate.Append(empty.Image, addenda...)
	if err != nil {
		return nil, fmt.Errorf("add layers: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", s.Architecture, v1.Time{Time: s.Created}
	file.Config = v1.Config{
		Entrypoint: s.Entrypoint, Cmd: s.Cmd, User: s.User, WorkingDir: s.WorkingDir, Labels: s.Labels, Env: environment(s.Env),
	}
	img, err = mutate.ConfigFile(img, file)
	if err != nil {
		return nil, fmt.Errorf("set configuration: %w", err)
	}
	return img, nil
}

func environment(env map[string]string) []string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(env)) {
		list = append(list, key+"="+env[key])
	}
	return list
}

// Write puts the image under its reference into an archive in docker's format. The file
// appears whole or not at all.
func Write(file, reference string, img v1.Image) (err error) {
	tag, err := name.NewTag(reference)
	if err != nil {
		return fmt.Errorf("image name: %w", err)
	}
	temporary := file + ".tmp"
	out, err := os.Create(temporary)
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temporary))
		}
	}()
	if err := tarball.Write(tag, img, out); err != nil {
		return errors.Join(fmt.Errorf("write image %s: %w", reference, err), out.Close())
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	if err := os.Rename(temporary, file); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}
