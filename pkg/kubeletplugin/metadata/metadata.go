// Package metadata tells containers of their devices (KEP-5304), by files that the DRA library
// writes. It is for package agent. It must not know hardware, or where devices come from.
package metadata

import (
	"fmt"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatav1alpha1 "k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/prepare"
)

// Of makes what a container is told of a prepared device, by the device of that name: all that is
// published, and the index and minor number of this moment, which are too unstable to publish.
// Nothing is told of a device that is not there any more.
func Of(lookup func(name string) (device.Device, bool)) func(prepare.Prepared) *draplugin.DeviceMetadata {
	return func(p prepare.Prepared) *draplugin.DeviceMetadata {
		known, ok := lookup(p.Device)
		if !ok {
			return nil
		}
		published, _ := known.Publish(device.VocabularyFull)
		attributes := make(map[string]resourceapi.DeviceAttribute, len(published.Attributes)+2)
		for name, value := range published.Attributes {
			attributes[string(name)] = value
		}
		if gpu, ok := known.(device.GPU); ok {
			index, minor := int64(gpu.Hardware().Index), int64(gpu.Minor())
			attributes["index"] = resourceapi.DeviceAttribute{IntValue: &index}
			attributes["minor"] = resourceapi.DeviceAttribute{IntValue: &minor}
		}
		return &draplugin.DeviceMetadata{Attributes: attributes}
	}
}

// Options switch the library's metadata on for a driver. Its files are written without fsync: they
// are derived, and every prepare after a reboot derives them again.
func Options(driver string) []draplugin.Option {
	versions := []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion, metadatav1alpha1.SchemeGroupVersion}
	return []draplugin.Option{
		draplugin.EnableDeviceMetadata(true, versions),
		draplugin.MetadataFileOps(draplugin.MetadataFileOperations{WriteFile: func(name string, data []byte, perm os.FileMode) error {
			return replaceFile(driver, name, data, perm)
		}}),
	}
}

// replaceFile writes a file so that readers see the old or the new content, without waiting for
// the disk. The temporary file has no .json ending, by which the runtime reads specs, and a name
// that the start's sweep of the CDI directory knows as ours.
func replaceFile(driver, name string, data []byte, perm os.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(name), "."+driver+"-metadata.*.tmp")
	if err != nil {
		return fmt.Errorf("write metadata: %w", err)
	}
	_, err = temp.Write(data)
	if err == nil {
		err = temp.Chmod(perm)
	}
	if closeErr := temp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
		return fmt.Errorf("write metadata: %w", err)
	}
	return nil
}
