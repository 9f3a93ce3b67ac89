/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package protocol

// NoLeaderWarning is how the warning begins that the server adds to its answers about a
// NodeMaintenance while none of its replicas leads, and so no controller acts on it. kubectl shows
// the warning to its user, and the node agent takes it for an answer of a server that cannot drain
// the node.
const NoLeaderWarning = "no replica of haulout-apiserver acts on NodeMaintenances"
