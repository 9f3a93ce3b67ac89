// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/files"
)

const (
	fileName    = "pods.json"
	fileVersion = 1
	// damagedSuffix is added to the name of a file that cannot be read. Only the last one is kept.
	damagedSuffix = ".damaged"
)

// file is the content of pods.json.
type file struct {
	Version int      `json:"version"`
	Node    string   `json:"node"`
	Pods    []record `json:"pods"`
}

// record is a pod whose times a person can read.
type record struct {
	Pod
	GracePeriod metav1.Duration `json:"gracePeriod"`
}

func encode(node string, pods []Pod) ([]byte, error) {
	f := file{Version: fileVersion, Node: node, Pods: make([]record, 0, len(pods))}
	for _, p := range pods {
		f.Pods = append(f.Pods, record{Pod: p, GracePeriod: metav1.Duration{Duration: p.GracePeriod}})
	}
	data, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", fileName, err)
	}
	return append(data, '\n'), nil
}

func decode(node string, data []byte) ([]Pod, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	if f.Version != fileVersion {
		return nil, fmt.Errorf("version is %d, must be %d", f.Version, fileVersion)
	}
	if f.Node != node {
		return nil, fmt.Errorf("it is of node %q, must be of node %q", f.Node, node)
	}
	pods := make([]Pod, 0, len(f.Pods))
	for _, r := range f.Pods {
		r.Pod.GracePeriod = r.GracePeriod.Duration
		pods = append(pods, r.Pod)
	}
	return pods, nil
}

// load reads the pods that were stored last. A file that cannot be read is moved aside, so that a
// person can look at it, and the next one is written in its place.
func load(dir, node string) ([]Pod, []byte, error) {
	path := filepath.Join(dir, fileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the stored pods: %w", err)
	}
	pods, err := decode(node, data)
	if err == nil {
		return pods, data, nil
	}
	err = fmt.Errorf("stored pods in %s: %w", path, err)
	if aside := os.Rename(path, path+damagedSuffix); aside != nil {
		err = errors.Join(err, aside)
	}
	return nil, nil, err
}

// store replaces the file. The old one stays if the new one cannot be written completely.
func store(dir string, data []byte) error {
	if err := files.Replace(filepath.Join(dir, fileName), bytes.NewReader(data), 0o600); err != nil {
		return fmt.Errorf("store the pods: %w", err)
	}
	return nil
}
