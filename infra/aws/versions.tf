# Terraform 1.9 and OpenTofu 1.9 read these files.
terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.42"
    }
  }
}

provider "aws" {
  region = var.region
  default_tags {
    tags = { Project = var.name }
  }
}

# CloudFront takes certificates from this region alone.
provider "aws" {
  alias  = "front"
  region = "us-east-1"
  default_tags {
    tags = { Project = var.name }
  }
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}
