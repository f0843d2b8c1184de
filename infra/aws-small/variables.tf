variable "name" {
  description = "Name of the cell: the first part of the name of everything that is made"
  type        = string
  default     = "logplane-small"
}

variable "region" {
  description = "AWS region"
  type        = string
}

variable "zone" {
  description = "Availability zone of the machine and its disk, where the account has a default subnet"
  type        = string
}

variable "domain" {
  description = "Name under which clients reach the API at port 7373, for example 'cell.example.com'"
  type        = string
}

variable "zone_id" {
  description = "Id of the public Route 53 zone in which the domain is"
  type        = string
}

variable "clients" {
  description = "Address ranges that may connect"
  type        = list(string)
  default     = ["0.0.0.0/0"]
}

variable "artifacts" {
  description = "Name of the bucket that has the package, which you made and filled: see README.md"
  type        = string
}

variable "release" {
  description = "Folder in the bucket of artifacts, with logplane-linux-arm64.rpm"
  type        = string
}

variable "machine" {
  description = "Type of the EC2 machine, of the processor arm64"
  type        = string
  default     = "t4g.small"
}

variable "disk_gib" {
  description = "Size of the disk with the keys and the log's newest events, in GiB"
  type        = number
  default     = 10
}

variable "flags" {
  description = "More flags of 'logplane serve', as in { history = \"720h\" }"
  type        = map(string)
  default     = {}
}

variable "prefix" {
  description = "The cell's folder in its bucket"
  type        = string
  default     = "cell"
}

variable "kept_days" {
  description = "Days for which the bucket keeps what was deleted, for a restore"
  type        = number
  default     = 7
}
