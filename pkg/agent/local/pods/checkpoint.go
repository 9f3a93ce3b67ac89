// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/files"
)

// writeDelay is the time between a change and the write: a rollout changes many pods in a second.
// It is also the time between attempts to write, for example to a full disk.
const writeDelay = time.Second

// Checkpoint is the pods of the own node, as the API server knew them last. It is on disk, because
// an agent that starts while the API server is unreachable needs it most.
type Checkpoint struct {
	dir    string
	client kubernetes.Interface
	node   string

	static manifests

	mu   sync.Mutex
	pods []Pod
	// stored is the content of the file, to write only what changed.
	stored []byte
}

// New returns the checkpoint in a folder, which it makes. If what was stored cannot be read, it
// returns a checkpoint without pods and the error: the caller can go on with both.
func New(dir string, client kubernetes.Interface, node string) (*Checkpoint, error) {
	c := &Checkpoint{dir: dir, client: client, node: node, static: manifests{node: node}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return c, fmt.Errorf("make the folder of the stored pods: %w", err)
	}
	var err error
	c.pods, c.stored, err = load(dir, node)
	return c, err
}

// SetStaticPodPath sets the folder (or file) of the kubelet's static pods. An empty one means that
// the kubelet has none.
func (c *Checkpoint) SetStaticPodPath(path string) {
	c.static.setPath(path)
}

// Pods returns the pods of the node, with the static pods whose manifests are there now, in the
// order of their names.
func (c *Checkpoint) Pods() []Pod {
	c.mu.Lock()
	known := c.pods
	c.mu.Unlock()
	return merge(known, c.static.pods())
}

// Priorities returns the priorities of the pods that are not finished.
func (c *Checkpoint) Priorities() []int32 {
	var priorities []int32
	for _, p := range c.Pods() {
		if !p.Finished {
			priorities = append(priorities, p.Priority)
		}
	}
	return priorities
}

// Run keeps the checkpoint up to date until the context ends. While the API server is unreachable,
// the pods known last stay.
func (c *Checkpoint) Run(ctx context.Context) error {
	ofNode := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", c.node).String()
	}
	factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0,
		informers.WithTweakListOptions(ofNode), informers.WithTransform(strip))
	informer := factory.Core().V1().Pods().Informer()
	changes := make(chan struct{}, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	}); err != nil {
		return fmt.Errorf("watch the pods of node %s: %w", c.node, err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	// Before the first list is complete, the pods of the file are more than those of the informer.
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	changed()
	c.follow(ctx, informer.GetStore(), changes)
	return nil
}

// follow takes over every change immediately and writes it a little later.
func (c *Checkpoint) follow(ctx context.Context, store cache.Store, changes <-chan struct{}) {
	var write <-chan time.Time
	for {
		select {
		case <-changes:
			c.set(store.List())
			if write == nil {
				write = time.After(writeDelay)
			}
		case <-write:
			write = nil
			if err := c.write(); err != nil {
				klog.FromContext(ctx).Error(err, "Pods of the node were not stored, the stored ones are older", "node", c.node)
				write = time.After(writeDelay)
			}
		case <-ctx.Done():
			if err := c.write(); err != nil {
				klog.FromContext(ctx).Error(err, "Pods of the node were not stored at the end", "node", c.node)
			}
			return
		}
	}
}

func (c *Checkpoint) set(objects []any) {
	pods := make([]Pod, 0, len(objects))
	for _, o := range objects {
		// The selector is the server's work; a pod of another node would be looked for in vain.
		if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName == c.node {
			pods = append(pods, newPod(pod))
		}
	}
	slices.SortFunc(pods, compare)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods = pods
}

// write stores the pods, unless the same are stored: most changes of a pod are of its status.
func (c *Checkpoint) write() error {
	c.mu.Lock()
	pods, stored := c.pods, c.stored
	c.mu.Unlock()
	data, err := encode(c.node, pods)
	if err != nil || bytes.Equal(data, stored) {
		return err
	}
	if err := store(c.dir, data); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored = data
	return nil
}

// strip removes what is not read from a pod before it is cached.
func strip(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	kept := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Annotations: map[string]string{}, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority, PriorityClassName: pod.Spec.PriorityClassName,
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, key := range []string{corev1.MirrorPodAnnotationKey, annotationConfigHash, annotationConfigSource} {
		if value, found := pod.Annotations[key]; found {
			kept.Annotations[key] = value
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		kept.Spec.InitContainers = append(kept.Spec.InitContainers, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy})
	}
	return kept, nil
}

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
